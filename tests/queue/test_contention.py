"""Changes of one thing that many callers make at the same time queue; none of them is refused because of the others."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from tests.limits import BOUND

from treadle import Engine
from treadle.model.errors import IllegalTransition
from treadle.settings import Settings

COUNT = 40
Change = Callable[[int], Awaitable[Any]]


async def _schedule(engine: Engine, folder: Path) -> Change:
    await engine.schedules.create("s", cron="0 3 * * *", task="work")
    return lambda n: engine.schedules.edit("s", priority=n)


async def _watcher(engine: Engine, folder: Path) -> Change:
    await engine.watchers.create("w", directory=str(folder), task="work", every=3600)
    return lambda n: engine.watchers.edit("w", every=3600 + n)


async def _objective(engine: Engine, folder: Path) -> Change:
    made = await engine.goals.objectives.add("o", actor="ada")
    return lambda n: engine.goals.objectives.edit(made.objective_id, title=f"o {n}", actor="ada")


async def _task(engine: Engine, folder: Path) -> Change:
    task = await engine.enqueue("work", delay=3600)
    return lambda n: engine.pause(task) if n % 2 else engine.resume(task)


async def _run(engine: Engine, folder: Path) -> Change:
    @engine.function("wait")
    async def wait(payload: Any, ctx: Any) -> Any:
        return await ctx.wait_for("go")

    run = await engine.start_function("wait")
    return lambda n: engine.runs.pause(run) if n % 2 else engine.runs.resume(run)


@pytest.mark.parametrize("things", [_schedule, _watcher, _objective, _task, _run])
async def test_simultaneous_changes_queue(things: Callable[[Engine, Path], Awaitable[Change]], tmp_path: Path) -> None:
    async with Engine("memory://", settings=Settings()) as engine, asyncio.timeout(BOUND):
        change = await things(engine, tmp_path)
        ended = await asyncio.gather(*(change(n) for n in range(COUNT)), return_exceptions=True)
        assert [each for each in ended if isinstance(each, BaseException) and not isinstance(each, IllegalTransition)] == []
        assert (await engine.kernel.verify()).problems == ()
