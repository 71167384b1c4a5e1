"""Start an export at a service and poll it with growing delays, up to a deadline."""

import asyncio

from treadle import Canceled, Engine

engine = Engine()  # the store in TREADLE_STORE, else sqlite:///treadle.db
FIRST, MAX_PAUSE = 0.1, 60  # seconds between two checks
checks = 0


async def submit(table, key):
    """The service: it starts one job per key."""
    return f"export-{table}-{key[:8]}"


async def check(job):
    global checks
    checks += 1
    return (
        {"state": "running"}
        if checks < 3
        else {"state": "done", "url": f"https://example.org/{job}.csv"}
    )


async def abort(job):
    print("aborted", job)


@engine.function("export", cleanup_timeout=600)
async def export(payload, ctx):
    job = await ctx.effect(
        "submit", lambda: submit(payload["table"], ctx.idempotency_key), payload, retry=5
    )
    delay = FIRST
    try:
        while (found := await ctx.step(check, job, retry=5))["state"] == "running":
            await ctx.sleep(delay)
            delay = min(2 * delay, MAX_PAUSE)
    except Canceled:  # by a person, or by the deadline
        await ctx.step(abort, job, retry=5)
        raise
    return found


async def main():
    async with engine, engine.worker():
        run = await engine.start("export", {"table": "orders"}, deadline=7_200)
        print(await run.result())


if __name__ == "__main__":
    asyncio.run(main())
