"""The Treadle side of docs/coming-from/temporal.md."""

# --- define ---
import asyncio
from dataclasses import dataclass
from datetime import timedelta

from treadle import Engine, FunctionContext, NonRetryable, RetryPolicy

engine = Engine("sqlite:///orders.db")  # or postgresql://...; there is no server to run


@dataclass
class Order:
    id: str
    total: int


@engine.task("charge", timeout=30, retry=RetryPolicy.of(3, first=1, factor=2))
async def charge(order: Order) -> str:
    if order.total <= 0:
        raise NonRetryable("nothing to charge", "nothing_to_charge")
    return f"receipt-{order.id}"


@engine.function("order")
async def order_workflow(ctx: FunctionContext, order: Order) -> str:
    ctx.publish("state", "new")
    # on any worker; `ctx.step(function, ...)` runs in this one
    receipt = await ctx.call(charge, order)
    ctx.publish("state", "charged")
    address = await ctx.wait_for("ship_to", type=str, timeout=timedelta(days=7))
    await ctx.sleep(timedelta(days=1))
    ctx.publish("state", "shipped")
    return f"{receipt} to {address}"


# --- version ---
@engine.function("refund")
async def refund(ctx: FunctionContext, order: Order) -> str:
    if ctx.patched("check-fraud"):
        await ctx.step(check_fraud, order, timeout=30)
    return f"refunded {order.id}"


# --- child ---
@engine.function("batch")
async def batch(ctx: FunctionContext, orders: list[Order]) -> list[str]:
    children = [await ctx.start(refund, order) for order in orders]
    return list(await ctx.gather(*(child.result() for child in children)))


# --- test ---
def test_an_order_is_shipped_after_a_day(treadle_env):
    run = treadle_env.engine.start(order_workflow, Order("7", 40))
    run.signal("ship_to", "Turin")
    assert treadle_env.result(run) == "receipt-7 to Turin"


# --- rest ---
async def check_fraud(order: Order) -> None: ...


async def main() -> None:
    # --- start ---
    async with engine, engine.worker():
        start = order_workflow.with_options(idempotency_key="order-7")
        run = await engine.start(start, Order("7", 40))
        await run.signal("ship_to", "Turin")
        # --- schedule ---
        order = {"order": {"id": "7", "total": 40}}
        await engine.schedules.create(
            "nightly", cron="30 2 * * *", zone="Europe/Berlin", function="refund", inputs=order
        )
        # --- end ---
        assert (await engine.start(start, Order("7", 40))).id == run.id
        assert await (await engine.start(batch, [Order("1", 1), Order("2", 2)])).result(
            timeout=60
        ) == ["refunded 1", "refunded 2"]
        while await run.query("state") != "charged":
            await asyncio.sleep(0.02)


if __name__ == "__main__":
    asyncio.run(main())
