"""Progress deadlines of less than a second, of handlers and of tasks, with real workers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.limits import BOUND

from treadle import Context, Engine

SHORT = 0.4


@pytest.mark.parametrize("whose", ["handler", "task"])
async def test_a_handler_without_progress_is_stopped_and_its_task_taken_again_soon(whose: str) -> None:
    engine = Engine("memory://")
    attempts: list[float] = []

    async def stall(payload: Any, ctx: Context) -> None:
        attempts.append(asyncio.get_running_loop().time())
        if len(attempts) == 1:
            await asyncio.sleep(BOUND)

    engine.handler("stall", progress_every=SHORT if whose == "handler" else None)(stall)
    async with engine, engine.worker():
        task = await engine.enqueue("stall", progress_every=SHORT if whose == "task" else None)
        await engine.result(task, timeout=BOUND)
    assert attempts[1] - attempts[0] < 15  # the lease is for a minute


@pytest.mark.parametrize("whose", ["handler", "task"])
async def test_a_handler_that_reports_progress_in_time_keeps_its_task(whose: str) -> None:
    engine = Engine("memory://")
    attempts: list[int] = []

    def work(payload: Any, ctx: Context) -> None:
        attempts.append(ctx.attempt)
        for _ in range(30):
            if ctx.wait_cancelled(SHORT / 4):
                return
            ctx.progress()

    engine.handler("work", progress_every=SHORT if whose == "handler" else None)(work)
    async with engine, engine.worker():
        task = await engine.enqueue("work", progress_every=SHORT if whose == "task" else None)
        await engine.result(task, timeout=BOUND)
    assert attempts == [1]
