"""Handlers: the code that workers run."""

import asyncio

from treadle import Context, Engine

engine = Engine("sqlite:///treadle.db")


@engine.handler("report", retry=3)
async def report(month: str, ctx: Context) -> dict[str, str]:
    print(f"attempt {ctx.attempt}: writing the report for {month}", flush=True)
    await asyncio.sleep(10)  # the real work
    return {"report": f"{month}: 42 orders"}
