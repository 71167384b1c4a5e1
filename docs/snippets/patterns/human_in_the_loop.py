"""Pay a refund after a person has approved it, and perhaps changed the amount."""

import asyncio

from treadle import ApprovalDenied, ApprovalExpired, Engine

engine = Engine()  # the store in TREADLE_STORE, else sqlite:///treadle.db
DAY = 86_400  # seconds


async def pay(customer, amount, key):
    """A payment service: it pays once per key."""
    print(f"pay {amount} to {customer}")
    return {"receipt": key[:8]}


@engine.function("refund")
async def refund(payload, ctx):
    customer = payload["customer"]
    try:
        decision = await ctx.approval(
            f"Refund {payload['amount']} to {customer}?",
            context={"amount": payload["amount"]},
            deciders=["ada"],
            edits=True,
            remind_every=DAY,
            escalate_after=DAY,
            escalate_to=["grace"],
            expires=7 * DAY,
        )
    except ApprovalDenied as error:
        return {"state": "denied", "reason": str(error)}
    except ApprovalExpired:
        return {"state": "expired"}
    amount = decision["context"]["amount"]  # including edits
    paid = await ctx.effect(
        "pay", lambda: pay(customer, amount, ctx.idempotency_key), {"amount": amount}, retry=5
    )
    return {"state": "paid", "amount": amount, "by": decision["by"], **paid}


async def main():
    async with engine, engine.worker():
        run = await engine.start(refund, {"customer": "Linus", "amount": 120})
        while not (mine := (await engine.approvals.list(run_id=run.id)).approvals):
            await asyncio.sleep(0.01)
        print(mine[0].title)
        # a person does this
        await engine.approvals.decide(mine[0].id, "approve", actor="ada", edits={"amount": 60})
        print(await run.result())


if __name__ == "__main__":
    asyncio.run(main())
