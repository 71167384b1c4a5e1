"""A durable function: killed and started again, it continues after its last recorded step."""

import asyncio

from treadle import Engine, FunctionContext

engine = Engine("sqlite:///orders.db")


async def charge(order: int) -> str:
    print(f"charging order {order}", flush=True)
    await asyncio.sleep(2)
    return f"receipt {order}"


async def ship(receipt: str) -> str:
    print(f"shipping for {receipt}", flush=True)
    await asyncio.sleep(2)
    return f"shipped, {receipt}"


@engine.function("order")
async def order(number: int, ctx: FunctionContext) -> str:
    receipt = await ctx.step(charge, number)  # recorded: a restart does not charge again
    return await ctx.step(ship, receipt)


async def main() -> None:
    async with engine, engine.worker():
        run = await engine.start(order.with_options(idempotency_key="order 7"), 7)
        print(await run.result())


if __name__ == "__main__":
    asyncio.run(main())
