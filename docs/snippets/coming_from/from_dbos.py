"""The Treadle side of docs/coming-from/dbos.md."""

# --- define ---
import asyncio

from treadle import Engine, FunctionContext, RetryPolicy

engine = Engine("sqlite:///shop.db")


def charge(order_id: str) -> str:  # an ordinary function: calling it records nothing
    return f"receipt-{order_id}"


@engine.function("order")
async def order(ctx: FunctionContext, order_id: str) -> str:
    receipt = await ctx.step(charge, order_id, retry=RetryPolicy.of(3, first=1, factor=2))
    ctx.publish("state", "charged")
    address = await ctx.wait_for("ship_to", type=str, timeout=7 * 86_400)
    await ctx.sleep(0.1)
    return f"{receipt} to {address}"


# --- gather ---
@engine.task("pack", limit_key="orders")
def pack(order_id: str) -> str:
    return f"packed {order_id}"


@engine.function("all_orders")
async def all_orders(ctx: FunctionContext, order_ids: list[str]) -> list[str]:
    return list(await ctx.gather(*(ctx.call(pack, order_id) for order_id in order_ids)))


# --- limits ---
engine.declare.limit("orders", max=10, rate="50/min", burst=5)


# --- schedule ---
@engine.declare.schedule("nightly", cron="30 2 * * *", zone="Europe/Berlin")
@engine.function("nightly")
async def nightly(payload, ctx):
    ctx.log(f"for {payload}")


# --- test ---
def test_an_order_waits_for_its_address(treadle_env):
    run = treadle_env.engine.start(order, "7")
    treadle_env.drain()
    assert run.query("state") == "charged"
    run.signal("ship_to", "Turin")
    assert treadle_env.result(run) == "receipt-7 to Turin"


# --- rest ---
async def main() -> None:
    # --- start ---
    async with engine, engine.worker():  # this process is a worker inside the block
        run = await engine.start(order.with_options(idempotency_key="order-7"), "7")
        await run.signal("ship_to", "Turin")
        assert await run.result(timeout=60) == "receipt-7 to Turin"
        assert await run.query("state") == "charged"
        # --- queue ---
        await engine.enqueue(pack.with_options(unique_key="pack-7", priority=1, delay=0.1), "7")
        # --- transaction ---
        async with engine.transaction() as tx:  # on PostgreSQL: engine.within(your_connection)
            await tx.execute("create table if not exists orders (id text primary key)")
            await tx.execute("insert into orders values (?)", ("8",))
            await tx.enqueue("pack", {"order_id": "8"})
        # --- end ---
        assert await (await engine.start(all_orders, ["1", "2"])).result(timeout=60) == [
            "packed 1",
            "packed 2",
        ]


if __name__ == "__main__":
    asyncio.run(main())
