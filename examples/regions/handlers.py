"""Shops that respond after a while, or not at all."""

import asyncio

from treadle import Engine, NonRetryable

engine = Engine()


@engine.handler("sales.Turnover", concurrency=20)
async def turnover(payload):
    """The longer the name, the better the sales."""
    await asyncio.sleep(0.01)
    if payload["shop"].startswith("closed"):
        raise NonRetryable(f"{payload['shop']} in {payload['region']} does not answer", "silent")
    return {"amount": 100.5 * len(payload["shop"])}
