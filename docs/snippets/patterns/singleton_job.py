"""Rebuild a search index: one rebuild runs at a time, and all callers share its result."""

import asyncio

from treadle import Engine

engine = Engine()  # the store in TREADLE_STORE, else sqlite:///treadle.db


@engine.handler("search.Rebuild", retry=3, timeout=3_600)
async def rebuild(payload, ctx):
    for percent in (0, 50, 100):
        ctx.progress(percent / 100, f"{percent}%")
        await asyncio.sleep(0.05)
    return {"documents": 1_234}


async def request_rebuild():
    """Return the rebuild that waits or runs, or a new one."""
    return await engine.enqueue("search.Rebuild", unique_key="search-index")


async def main():
    async with engine, engine.worker():
        tasks = await asyncio.gather(*(request_rebuild() for _ in range(5)))
        print({task.id for task in tasks})  # one
        print(await engine.result(tasks[0]))


if __name__ == "__main__":
    asyncio.run(main())
