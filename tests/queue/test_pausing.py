"""A running task can be paused: its attempt ends, or is interrupted and repeated after the resume; nothing is lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.engines import make_engine, url_of
from tests.limits import BOUND
from tests.sizes import POSTGRES

from treadle import Context, Engine
from treadle.model.errors import Refused
from treadle.model.outcomes import Problem, Retry


@pytest.fixture(params=["memory", POSTGRES])
async def engine(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Engine]:
    async with make_engine(url_of(request.param, request, tmp_path)) as made:
        yield made


@pytest.mark.postgres
async def test_an_attempt_in_progress_ends_and_an_unfinished_task_is_paused(engine: Engine) -> None:
    started, go = asyncio.Queue[int](), asyncio.Event()

    @engine.handler("slow", retry=3)
    async def slow(payload: dict[str, object], ctx: Context) -> object:
        await started.put(ctx.attempt)
        await go.wait()
        return {"n": ctx.attempt} if payload["ends"] or ctx.attempt > 1 else Retry(Problem("busy", "busy"), 0)

    ends, fails = await engine.enqueue("slow", {"ends": True}), await engine.enqueue("slow", {"ends": False})
    async with asyncio.timeout(BOUND), engine.worker():
        for _ in range(2):
            await started.get()
        for task in (ends, fails):
            await engine.pause(task, actor="ann", reason="the bank is closed")
            assert (await engine.kernel.reads.get_task(task)).shown_state == "paused"
            why = (await engine.kernel.reads.why(task)).text
            assert why.startswith("paused: the bank is closed; its attempt in progress may end; resume")
        go.set()
        assert await engine.result(ends) == {"n": 1}
        while (held := await engine.kernel.reads.get_task(fails)).owner_id is not None:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert (held.shown_state, held.failures) == ("paused", 1)
        await engine.resume(fails)
        assert await engine.result(fails) == {"n": 2}
    assert (await engine.kernel.verify()).problems == ()


async def test_an_interrupted_attempt_stops_and_is_repeated_after_the_resume(engine: Engine) -> None:
    started, stopped, attempts = asyncio.Event(), asyncio.Event(), []

    @engine.handler("slow")
    async def slow(payload: dict[str, object], ctx: Context) -> dict[str, object]:
        attempts.append(ctx.attempt)
        if len(attempts) == 1:
            started.set()
            try:
                await asyncio.Event().wait()
            finally:
                stopped.set()
        return {"n": ctx.attempt}

    task = await engine.enqueue("slow")
    async with asyncio.timeout(BOUND), engine.worker():
        await started.wait()
        await engine.pause(task, interrupt=True)
        await stopped.wait()
        held = await engine.kernel.reads.get_task(task)
        assert (held.shown_state, held.owner_id, held.attempt, held.failures) == ("paused", None, 2, 0)
        await engine.resume(task)
        assert await engine.result(task) == {"n": 2}
    assert attempts == [1, 2]
    assert (await engine.kernel.verify()).problems == ()


async def test_a_pause_of_an_attempt_in_progress_can_be_taken_back(engine: Engine) -> None:
    started, go = asyncio.Event(), asyncio.Event()

    @engine.handler("slow")
    async def slow(payload: dict[str, object]) -> None:
        started.set()
        await go.wait()

    task = await engine.enqueue("slow")
    async with asyncio.timeout(BOUND), engine.worker():
        await started.wait()
        await engine.pause(task)
        await engine.resume(task)
        assert (await engine.kernel.reads.get_task(task)).shown_state == "running"
        go.set()
        assert await engine.result(task) == {}


async def test_the_task_of_a_running_function_is_paused_with_its_run(engine: Engine) -> None:
    started, go = asyncio.Event(), asyncio.Event()

    @engine.function("f")
    async def f(payload: dict[str, object], ctx: object) -> None:
        started.set()
        await go.wait()

    run = await engine.start_function("f")
    async with asyncio.timeout(BOUND), engine.worker():
        await started.wait()
        (task,) = await engine.kernel.reads.list_tasks(states=("running",), run_id=run.id)
        with pytest.raises(Refused, match=f"treadle runs pause {run.id}"):
            await engine.pause(task.id)
        go.set()
        await engine.run_result(run)
