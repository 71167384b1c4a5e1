import asyncio

from treadle import Engine, RetryPolicy

engine = Engine("memory://")
charged = {}


async def charge(amount, key):
    """An external service that deduplicates by a key."""
    charged.setdefault(key, amount)
    return {"receipt": key[:8]}


@engine.handler("billing.Charge", retry=RetryPolicy.of(3, first=0.1))
async def charge_card(payload, ctx):
    receipt = await ctx.effect(
        "charge",
        lambda: charge(payload["amount"], ctx.idempotency_key),
        request={"order": payload["order"], "amount": payload["amount"]},
    )
    if ctx.attempt == 1:
        # the next attempt does not charge again
        raise RuntimeError("the receipt could not be printed")
    return {"receipt": receipt, "attempt": ctx.attempt}


async def main():
    async with engine, engine.worker():
        task = await engine.enqueue("billing.Charge", {"order": 7, "amount": 120})
        result = await engine.result(task)
    assert result["attempt"] == 2
    assert list(charged.values()) == [120]


asyncio.run(main())
