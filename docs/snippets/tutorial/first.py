"""A durable workflow: each finished step is stored in first.db and never runs again."""

import asyncio

from treadle import Engine, FunctionContext

engine = Engine("sqlite:///first.db")


async def boil(cups: int) -> str:
    print(f"boiling water for {cups} cups", flush=True)
    await asyncio.sleep(5)
    return f"{cups} cups of hot water"


async def brew(water: str) -> str:
    print(f"brewing tea with {water}", flush=True)
    await asyncio.sleep(5)
    return f"tea from {water}"


@engine.function("make_tea")
async def make_tea(cups: int, ctx: FunctionContext) -> str:
    water = await ctx.step(boil, cups)
    return await ctx.step(brew, water)


async def main() -> None:
    async with engine, engine.worker(name="kitchen"):
        run = await engine.start(make_tea.with_options(idempotency_key="breakfast"), 2)
        print(await run.result())


if __name__ == "__main__":
    asyncio.run(main())
