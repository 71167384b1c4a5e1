"""Deadlines of runs: once one has passed, the run and everything in it ends, whatever happens to workers."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.engines import make_engine, url_of
from tests.limits import BOUND

from treadle import Engine
from treadle.kernel.store.queries import RunFilter, TaskFilter
from treadle.model.errors import InvalidPolicy, Refused, RunCanceled
from treadle.model.names import RUN_DEADLINE, UPKEEP
from treadle.model.values import decode
from treadle.settings import Settings
from treadle.testing import ManualClock

FLOW = [
    (
        "shop.afl",
        """
namespace shop {
    event facet Slow(n: Int) => (n: Int)
    workflow Wait(n: Int) => (n: Int) andThen {
        asked = sys.approval(question = "Go on?")
        made = Slow(n = $.n)
        yield Wait(n = made.n)
    }
}
""",
    )
]
FAR = 3600


async def timers(engine: Engine) -> list[Any]:
    return await engine.kernel.store.tasks.list_matching(TaskFilter(kind=RUN_DEADLINE, states=("pending", "running")), 100)


async def open_approvals(engine: Engine) -> bool:
    waiting = TaskFilter(states=("awaiting_approval",))
    return bool(await engine.kernel.store.tasks.list_matching(waiting, 10))


def define(engine: Engine, began: asyncio.Event | None = None) -> None:
    @engine.function("long")
    async def long(payload: dict[str, Any], ctx: Any) -> Any:
        child = await ctx.start("child", {})
        if began is not None:
            began.set()
        await ctx.sleep(FAR * 24)
        return await child.result()

    @engine.function("child")
    async def child(payload: dict[str, Any], ctx: Any) -> Any:
        await ctx.wait_for("never")

    @engine.function("quick")
    async def quick(payload: dict[str, Any], ctx: Any) -> Any:
        return 1


async def until_finished(engine: Engine, run_id: str) -> Any:
    async with asyncio.timeout(BOUND):
        while not (run := await engine.kernel.runs.get_run(run_id)).finished:  # noqa: ASYNC110 - the worker is in this process
            await asyncio.sleep(0.01)
    return run


async def test_a_deadline_ends_a_run_with_its_tasks_approvals_and_children():
    clock, began = ManualClock(), asyncio.Event()
    async with Engine("memory://", settings=Settings(), clock=clock) as engine:
        define(engine, began)
        async with engine.worker():
            flow = await engine.start_run(FLOW, "shop.Wait", {"n": 1}, deadline=FAR)
            function = await engine.start_function("long", {}, deadline=timedelta(hours=1))
            async with asyncio.timeout(BOUND):
                await began.wait()
                while not await engine.kernel.store.runs.list_children(function.id) or not await open_approvals(engine):  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            (child_id,) = await engine.kernel.store.runs.list_children(function.id)
            clock.advance(FAR)
            for run_id in (flow.id, function.id):
                run = await until_finished(engine, run_id)
                error = decode(run.error)
                assert (run.state, error["code"]) == ("canceled", "deadline_exceeded")
                assert "The deadline of the run passed at 20" in error["message"]
                with pytest.raises(RunCanceled, match="deadline"):
                    await engine.run_result(run_id)
                assert "deadline" in (await engine.why(run_id)).text
            assert (await until_finished(engine, child_id)).state == "canceled"
            assert not await open_approvals(engine)
        live = await engine.kernel.store.tasks.list_matching(TaskFilter(states=("pending", "awaiting_approval", "running")), 100)
        assert {task.kind for task in live} <= UPKEEP


async def test_a_deadline_ends_a_run_on_postgresql(request: pytest.FixtureRequest, tmp_path: Path):
    async with make_engine(url_of("postgres", request, tmp_path)) as engine:
        define(engine)
        kept = await engine.start_function("long", {}, deadline=FAR)
        run = await engine.start_function("long", {}, deadline=0.05)
        async with engine.worker():
            assert (await until_finished(engine, run.id)).state == "canceled"
        await engine.runs.cancel(kept.id)
        assert await timers(engine) == []


async def test_the_end_of_a_run_removes_its_timer_in_the_same_commit():
    clock = ManualClock()
    async with Engine("memory://", settings=Settings(), clock=clock) as engine:
        define(engine)
        run = await engine.start_function("long", {}, deadline="2h")
        (timer,) = await timers(engine)
        assert timer.wake_at == clock.now() + 2 * FAR * 1000
        stored = await engine.kernel.runs.get_run(run.id)
        assert stored.deadline_at == timer.wake_at
        reason = await engine.why(run.id)
        assert "deadline at 20" in reason.text
        await engine.runs.cancel(run.id)
        assert await timers(engine) == []


async def test_a_deadline_passes_while_the_run_is_paused_and_while_no_worker_runs(tmp_path: Path):
    url, clock = f"sqlite:///{tmp_path / 'treadle.db'}", ManualClock()
    async with Engine(url, settings=Settings(), clock=clock) as engine:
        define(engine)
        at = datetime.fromtimestamp(clock.now() / 1000 + FAR, UTC)
        paused = await engine.start_function("long", {}, deadline_at=at)
        left = await engine.start_function("long", {}, deadline=FAR)
        later = await engine.start_function("long", {}, deadline=FAR + 1)
        await engine.runs.pause(paused.id)
    clock.advance(FAR)
    async with Engine(url, settings=Settings(), clock=clock) as engine:
        define(engine)
        async with engine.worker():
            for run in (paused, left):
                assert (await until_finished(engine, run.id)).state == "canceled"
            assert not (await engine.kernel.runs.get_run(later.id)).finished


async def test_a_timer_that_a_dying_worker_held_ends_the_run_later():
    clock = ManualClock()
    async with Engine("memory://", settings=Settings(), clock=clock) as engine:
        define(engine)
        store = engine.kernel.store
        run = await engine.start_function("long", {}, deadline=10)
        clock.advance(10)
        await store.tasks.wake(10)
        queue_id = next(queue_id for queue_id, queue in (await store.tasks.list_queues()).items() if queue.kind == RUN_DEADLINE)
        (held,) = await store.tasks.claim([queue_id], "gone", 60_000, 1)
        clock.advance(61)
        await store.tasks.wake(10)
        async with engine.worker():
            assert (await until_finished(engine, run.id)).state == "canceled"
        assert held.id not in {task.id for task in await timers(engine)}


async def test_a_retry_has_no_deadline_and_a_rerun_has_the_default_again():
    clock = ManualClock()
    settings = Settings(run_deadlines=(("fail*", 60_000), ("*", 120_000)))
    async with Engine("memory://", settings=settings, clock=clock) as engine:

        @engine.function("fails")
        async def fails(payload: dict[str, Any], ctx: Any) -> Any:
            raise ValueError("no")

        define(engine)
        run = await engine.start_function("fails", {})
        assert (await engine.kernel.runs.get_run(run.id)).deadline_at == clock.now() + 60_000
        other = await engine.start_function("quick", {}, deadline=5)
        assert (await engine.kernel.runs.get_run(other.id)).deadline_at == clock.now() + 5_000
        async with engine.worker():
            assert (await until_finished(engine, run.id)).state == "failed"
        assert await timers(engine) == [] or all(decode(t.payload)["run_id"] != run.id for t in await timers(engine))
        await engine.runs.retry(run.id)
        assert (await engine.kernel.runs.get_run(run.id)).deadline_at is None
        again = await engine.runs.rerun(run.id)
        assert (await engine.kernel.runs.get_run(again.id)).deadline_at == clock.now() + 60_000


async def test_forks_have_the_default_deadline():
    clock = ManualClock()
    async with Engine("memory://", settings=Settings(run_deadlines=(("*", 60_000),)), clock=clock) as engine:

        @engine.function("slept")
        async def slept(payload: dict[str, Any], ctx: Any) -> Any:
            await ctx.step(str, name="first")

        flow = await engine.start_run(FLOW, "shop.Wait", {"n": 1})
        function = await engine.start_function("slept", {})
        async with engine.worker():
            await until_finished(engine, function.id)
        for run_id in (flow.id, function.id):
            step = (await engine.kernel.runs.list_steps(run_id))[-1]
            fork = await engine.runs.fork(run_id, step.id)
            assert (await engine.kernel.runs.get_run(fork.id)).deadline_at == clock.now() + 60_000
            assert fork.id in {decode(timer.payload)["run_id"] for timer in await timers(engine)}


async def test_a_run_that_continues_as_new_keeps_its_deadline():
    clock = ManualClock()
    async with Engine("memory://", settings=Settings(), clock=clock) as engine:

        @engine.function("loop")
        async def loop(payload: dict[str, Any], ctx: Any) -> Any:
            if payload["n"]:
                await ctx.continue_as_new({"n": payload["n"] - 1})
            await ctx.wait_for("never")

        run = await engine.start_function("loop", {"n": 1}, deadline=100)
        deadline_at = clock.now() + 100_000
        async with engine.worker():
            await until_finished(engine, run.id)
            async with asyncio.timeout(BOUND):
                while not (found := await timers(engine)):  # noqa: ASYNC110 - the worker is in this process
                    await asyncio.sleep(0.01)
        (timer,) = found
        assert timer.wake_at == deadline_at
        assert decode(timer.payload)["run_id"] != run.id


@pytest.mark.parametrize(
    "options",
    [
        {"deadline": 0},
        {"deadline": -1},
        {"deadline": "soon"},
        {"deadline_at": datetime(2020, 1, 1, tzinfo=UTC)},
        {"deadline_at": datetime(2099, 1, 1)},
        {"deadline": 1, "deadline_at": datetime(2099, 1, 1, tzinfo=UTC)},
    ],
)
async def test_a_deadline_that_cannot_be_kept_is_refused(options: dict[str, Any]):
    async with Engine("memory://", settings=Settings()) as engine:
        define(engine)
        with pytest.raises(InvalidPolicy):
            await engine.start_function("quick", {}, **options)
        with pytest.raises(InvalidPolicy):
            await engine.start_run(FLOW, "shop.Wait", {"n": 1}, **options)
        assert await engine.kernel.store.runs.count(RunFilter(namespace="default")) == {}


async def test_a_timer_is_the_engines_own_task():
    async with Engine("memory://", settings=Settings()) as engine:
        define(engine)
        run = await engine.start_function("long", {}, deadline=100)
        (timer,) = await timers(engine)
        with pytest.raises(Refused, match=f"runs cancel {run.id}"):
            await engine.cancel(timer.id)


async def test_a_schedule_gives_its_runs_a_deadline():
    clock = ManualClock()
    async with Engine("memory://", settings=Settings(), clock=clock) as engine:
        define(engine)
        await engine.schedules.create("nightly", every=60, function="long", deadline=30)
        async with engine.worker():
            clock.advance(60)
            async with asyncio.timeout(BOUND):
                while not (runs := await engine.kernel.run_reads.list_runs(limit=10)):  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
        started = [run for run in runs if run.workflow == "long"]
        assert all(run.deadline_at is not None for run in started)
        assert started
