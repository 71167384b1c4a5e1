"""A worker process of `bench.takeover`, at default settings: says when it starts a task, and hangs in the first attempt."""

from __future__ import annotations

import asyncio
import os
import time
from typing import Any

from bench.processes import listen, own_store, run_lasting, tell_parent
from treadle import Context, Engine
from treadle.settings import Settings


async def work() -> None:
    """Work until this process is killed."""
    engine = Engine(own_store(), settings=Settings(), emit=lambda _: None)

    @engine.handler("bench.takeover")
    async def start(payload: dict[str, Any], ctx: Context) -> None:
        tell_parent(task_id=ctx.task_id, attempt=ctx.attempt, at=time.time(), pid=os.getpid())
        if ctx.attempt == 1:
            await asyncio.Event().wait()

    async with engine, engine.worker():
        tell_parent(ready=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    listen()
    run_lasting(work())
