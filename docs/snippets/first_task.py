import asyncio

from treadle import Context, Engine

engine = Engine("sqlite:///treadle.db")


@engine.handler("greet", retry=3)
async def greet(name: str, ctx: Context) -> dict[str, str]:
    return {"text": f"Hello, {name}! This is attempt {ctx.attempt}."}


async def main() -> None:
    async with engine, engine.worker():
        task = await engine.enqueue(greet, "Ada")  # durable when this returns
        print(await task.result())


if __name__ == "__main__":
    asyncio.run(main())
