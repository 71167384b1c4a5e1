import asyncio
import hashlib
import json

from treadle import Engine

engine = Engine("memory://")
keys = {}


def digest(value):
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


@engine.handler("billing.Charge")
async def charge_card(payload, ctx):
    def charge():
        keys.update(attempt=ctx.attempt_key, all=ctx.idempotency_key)

    await ctx.effect("charge", charge, request={"order": payload["order"]})


async def main():
    async with engine, engine.worker():
        task = await engine.enqueue("billing.Charge", {"order": "Nº 7"})
        await engine.result(task)
    request_hash = digest({"request": {"order": "Nº 7"}})
    assert keys["attempt"] == digest([task.id, None, 1, "charge", request_hash])
    assert keys["all"] == digest([task.id, None, "charge", request_hash])


asyncio.run(main())
