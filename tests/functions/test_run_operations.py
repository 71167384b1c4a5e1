"""Operations on runs of functions: pause, resume, cancel, retry, fork, rerun; and ends that the function does not decide."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.engines import ALL, SHARED, make_engine, url_of
from tests.errors import raises_code
from tests.functions.driver import LEASE_FOR, Scene, function_scene, requeued, until
from tests.limits import BOUND

from treadle import Engine
from treadle.kernel.functions import operations
from treadle.model.errors import IllegalTransition, Refused, RunCanceled, RunFailed, StepFailed

COLD, WARM = 0, 1000


@pytest.fixture(params=ALL)
async def engine(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Engine]:
    async with make_engine(url_of(request.param, request, tmp_path)) as opened:
        yield opened


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    async with function_scene() as opened:
        yield opened


async def done(value: Any = None) -> Any:
    return value


# --- pause (D20) ---


@pytest.mark.parametrize("warm", [COLD, WARM])
async def test_a_paused_function_finishes_its_step_and_stops_at_the_next_operation(scene: Scene, warm: int):
    executed: list[str] = []
    started_step, may_end = asyncio.Event(), asyncio.Event()

    async def slow() -> str:
        executed.append("slow")
        started_step.set()
        await may_end.wait()
        return "kept"

    async def next_one() -> str:
        executed.append("next")
        return "next"

    @scene.engine.function("f")
    async def function(payload: dict[str, Any], ctx: Any) -> Any:
        return [await ctx.step(slow), await ctx.step(next_one)]

    started = await scene.engine.start_function("f")
    process = scene.process(warm=warm)
    turn = asyncio.create_task(process.turn())
    await started_step.wait()
    run = await scene.engine.runs.pause(started.id, actor="ada")
    assert run.state == "paused"
    may_end.set()
    await turn
    assert executed == ["slow"]
    assert await scene.steps(started.id) == [("0", "step slow", "completed")]
    (task,) = await process.live(started.id)
    assert (task.owner_id, task.shown_state) == (None, "paused")
    assert await process.turn() == 0
    assert (await scene.engine.kernel.run_reads.why(started.id)).code == "paused"
    await scene.engine.runs.resume(started.id)
    await process.quiet()
    assert await scene.engine.run_result(started) == ["kept", "next"]
    assert executed == ["slow", "next"]


@pytest.mark.parametrize("warm", [COLD, WARM])
async def test_a_function_that_returns_while_it_is_paused_ends_when_it_is_resumed(scene: Scene, warm: int):
    started_step, may_end = asyncio.Event(), asyncio.Event()
    executed: list[int] = []

    async def slow() -> int:
        executed.append(1)
        started_step.set()
        await may_end.wait()
        return 1

    @scene.engine.function("f")
    async def function(payload: dict[str, Any], ctx: Any) -> Any:
        return await ctx.step(slow)

    started = await scene.engine.start_function("f")
    process = scene.process(warm=warm)
    turn = asyncio.create_task(process.turn())
    await started_step.wait()
    await scene.engine.runs.pause(started.id)
    may_end.set()
    await turn
    assert await scene.state(started.id) == "paused"
    await scene.engine.runs.resume(started.id)
    await process.quiet()
    assert await scene.engine.run_result(started) == 1
    assert executed == [1]


@pytest.mark.postgres
async def test_pausing_reaches_children_and_keeps_signals_and_results(engine: Engine):
    @engine.handler("work")
    async def work(payload: dict[str, Any]) -> dict[str, Any]:
        return {"done": True}

    @engine.function("grandchild")
    async def grandchild(payload: dict[str, Any], ctx: Any) -> Any:
        return await ctx.wait_for("go")

    @engine.function("child")
    async def child(payload: dict[str, Any], ctx: Any) -> Any:
        return await (await ctx.start("grandchild")).result()

    @engine.function("parent")
    async def parent(payload: dict[str, Any], ctx: Any) -> Any:
        handles = [await ctx.start("child") for _ in range(2)]
        return await ctx.gather(*(handle.result() for handle in handles), ctx.call("work"))

    started = await engine.start_function("parent")
    async with engine.worker():
        below = await _tree(engine, started.id, 4)
        await engine.runs.pause(started.id)
        states = {(await engine.kernel.runs.get_run(each)).state for each in [started.id, *below]}
        assert states == {"paused"}
        for each in below:
            if (await engine.kernel.runs.get_run(each)).workflow == "grandchild":
                await engine.signal(each, "go", 7)
        await engine.runs.pause(started.id)  # twice is no error
        assert (await engine.kernel.runs.get_run(below[0])).state == "paused"
        await engine.runs.resume(started.id)
        assert await engine.run_result(started, timeout=BOUND) == [7, 7, {"done": True}]
    report = await engine.kernel.verify()
    assert report.problems == ()


async def _tree(engine: Engine, run_id: str, count: int) -> list[str]:
    """The ids of the runs below, once there are so many and all of them wait."""
    below: list[str] = []

    async def waits() -> bool:
        nonlocal below
        below = [run.id for run in await engine.kernel.functions.descendants(run_id)]
        return len(below) == count and all([await requeued(engine, each) for each in [run_id, *below]])

    await until(waits)
    return below


async def test_a_paused_function_starts_no_child_although_it_had_decided_to(scene: Scene):
    begun, may_end = asyncio.Event(), asyncio.Event()

    async def slow() -> int:
        begun.set()
        await may_end.wait()
        return 1

    @scene.engine.function("child")
    async def child() -> str:
        return "child"

    @scene.engine.function("f")
    async def function(payload: dict[str, Any], ctx: Any) -> Any:
        handle = await ctx.start("child")  # goes with the next commit
        return [await ctx.step(slow), await ctx.step(done, 2), await handle.result()]

    started = await scene.engine.start_function("f")
    process = scene.process()
    turn = asyncio.create_task(process.turn())
    await begun.wait()
    await scene.engine.runs.pause(started.id)
    may_end.set()
    await turn
    assert ("1", "step slow", "completed") in await scene.steps(started.id)
    assert await scene.engine.kernel.store.runs.list_children(started.id) == []
    await scene.engine.runs.resume(started.id)
    await process.quiet()
    assert await scene.engine.run_result(started) == [1, 2, "child"]


# --- cancel ---


async def test_canceling_a_tree_ends_all_its_runs_together(engine: Engine):
    stopped: list[str] = []
    executes = asyncio.Event()

    async def forever() -> None:
        executes.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.append("step")

    @engine.function("child")
    async def child(payload: dict[str, Any], ctx: Any) -> Any:
        if payload["n"]:
            await ctx.step(forever)
        await ctx.wait_for("never")

    @engine.function("parent")
    async def parent(payload: dict[str, Any], ctx: Any) -> Any:
        handles = [await ctx.start("child", {"n": n}) for n in range(2)]
        return await ctx.gather(*(handle.result() for handle in handles), ctx.call("nobody"))

    async with engine.worker():
        started = await engine.start_function("parent")
        await until(lambda: _has_begun(engine, started.id))
        await asyncio.wait_for(executes.wait(), BOUND)
        below = await engine.kernel.store.runs.list_children(started.id)
        await engine.runs.cancel(started.id, actor="ada", reason="enough")
        for each in [started.id, *below]:
            run = await engine.kernel.runs.get_run(each)
            assert run.state == "canceled"
            assert await engine.kernel.run_reads.list_live_tasks(each) == []
        with pytest.raises(RunCanceled, match="enough"):
            await engine.run_result(started, timeout=BOUND)
        await until(lambda: asyncio.sleep(0, bool(stopped)))
        await engine.runs.cancel(started.id)  # twice is no error
        with pytest.raises(IllegalTransition):
            await engine.runs.pause(started.id)
        with pytest.raises(IllegalTransition):
            await engine.runs.retry(started.id)
    report = await engine.kernel.verify()
    assert report.problems == ()


async def _has_begun(engine: Engine, run_id: str) -> bool:
    running = await engine.kernel.reads.list_tasks(states=("running",), kind="function")
    return len(await engine.kernel.store.runs.list_children(run_id)) == 2 and len(running) == 1


@pytest.mark.parametrize("kind", SHARED)
async def test_a_cancel_or_pause_from_another_process_reaches_running_steps(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
):
    url = url_of(kind, request, tmp_path)
    stopped, begun, may_end = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def forever() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    async def slow() -> int:
        begun.set()
        await may_end.wait()
        return 1

    async with make_engine(url) as here, make_engine(url) as elsewhere:

        @here.function("cancel")
        async def to_cancel(payload: dict[str, Any], ctx: Any) -> Any:
            await ctx.step(forever)

        @here.function("pause")
        async def to_pause(payload: dict[str, Any], ctx: Any) -> Any:
            return [await ctx.step(slow), await ctx.step(done, 2)]

        async with here.worker():
            started = await here.start_function("cancel")
            async with asyncio.timeout(BOUND):
                await begun.wait()
                await elsewhere.runs.cancel(started.id)
                await stopped.wait()
            begun.clear()
            started = await here.start_function("pause")
            async with asyncio.timeout(BOUND):
                await begun.wait()
            await elsewhere.runs.pause(started.id)
            may_end.set()
            await until(lambda: _is_held(elsewhere, started.id))
            assert [row.row.path for row in await elsewhere.kernel.run_reads.list_steps(started.id)] == ["slow"]
            await elsewhere.runs.resume(started.id)
            assert await elsewhere.run_result(started, timeout=BOUND) == [1, 2]


async def _is_held(engine: Engine, run_id: str) -> bool:
    (task,) = await engine.kernel.run_reads.list_live_tasks(run_id)
    return task.owner_id is None and task.shown_state == "paused"


@pytest.mark.parametrize("warm", [COLD, WARM])
async def test_canceling_the_task_of_a_run_ends_the_run(scene: Scene, warm: int):
    @scene.engine.function("child")
    async def child(payload: dict[str, Any], ctx: Any) -> Any:
        await ctx.wait_for("never")

    @scene.engine.function("f")
    async def function(payload: dict[str, Any], ctx: Any) -> Any:
        handle = await ctx.start("child")
        await ctx.gather(handle.result(), ctx.call("work"))

    started = await scene.engine.start_function("f")
    process = scene.process(warm=warm)
    await process.quiet()
    below = await scene.engine.kernel.store.runs.list_children(started.id)
    (own,) = [task for task in await process.live(started.id) if task.kind == "function"]
    await scene.engine.cancel(own.id, reason="wrong one")
    assert [await scene.state(each) for each in [started.id, *below]] == ["canceled", "canceled"]
    assert await process.live(started.id) == []
    assert (await scene.engine.kernel.verify()).problems == ()


async def test_a_function_that_kills_its_workers_fails(scene: Scene):
    @scene.engine.function("f")
    async def function(payload: dict[str, Any], ctx: Any) -> Any:
        return None

    started = await scene.engine.start_function("f")
    for _ in range(5):
        await scene.process().claim("function")
        scene.clock.advance(LEASE_FOR / 1000)
        await scene.engine.kernel.store.tasks.wake(100)
    async with scene.engine.worker():
        with pytest.raises(RunFailed, match="5 workers"):
            await scene.engine.run_result(started, timeout=BOUND)


async def test_a_child_task_that_ends_after_its_run_sends_no_message(scene: Scene):
    @scene.engine.function("f")
    async def function(payload: dict[str, Any], ctx: Any) -> Any:
        await ctx.call("work")

    started = await scene.engine.start_function("f")
    process = scene.process()
    await process.quiet()
    (task,) = await process.claim("handler")
    await scene.engine.runs.cancel(started.id)
    assert (await process.settle(task)).verdict == "claim_lost"
    assert await scene.engine.kernel.store.records.list_messages(started.id, 10) == []


# --- retry ---


@pytest.mark.parametrize("warm", [COLD, WARM])
async def test_a_retry_repeats_the_failed_steps_and_all_later_ones(scene: Scene, warm: int):
    broken = True
    executed: list[str] = []

    async def work(name: str) -> str:
        executed.append(name)
        if broken and name.startswith("bad"):
            raise ValueError(f"{name} is broken")
        return name

    @scene.engine.function("f")
    async def function(payload: dict[str, Any], ctx: Any) -> Any:
        first = await ctx.step(work, "first", name="first")
        try:
            both = await ctx.gather(
                ctx.step(work, "bad1", name="bad1"), ctx.step(work, "ok", name="ok"), ctx.step(work, "bad2", name="bad2")
            )
        except StepFailed:
            await ctx.step(work, "cleanup", name="cleanup")
            raise
        return [first, *both, await ctx.step(work, "last", name="last")]

    started = await scene.engine.start_function("f")
    process = scene.process(warm=warm)
    await process.quiet()
    with pytest.raises(RunFailed, match="bad1 is broken"):
        await scene.engine.run_result(started)
    broken = False
    executed.clear()
    run = await scene.engine.runs.retry(started.id, actor="ada")
    assert run.state == "running"
    await process.quiet()
    assert await scene.engine.run_result(started) == ["first", "bad1", "ok", "bad2", "last"]
    assert sorted(executed) == ["bad1", "bad2", "last"]
    with pytest.raises(IllegalTransition):
        await scene.engine.runs.retry(started.id)
    assert (await scene.engine.kernel.verify()).problems == ()


@pytest.mark.parametrize("earlier", ["", "child", "grandchild"])
@pytest.mark.parametrize("warm", [COLD, WARM])
async def test_a_retry_continues_failed_child_runs(scene: Scene, warm: int, earlier: str):
    """An operator may have retried one of them `earlier`, so that it has completed or failed again."""
    broken = True
    executed: list[str] = []

    async def work(name: str) -> str:
        executed.append(name)
        if broken and name == "bad":
            raise ValueError("broken")
        return name

    @scene.engine.function("grandchild")
    async def grandchild(payload: dict[str, Any], ctx: Any) -> Any:
        return [await ctx.step(work, "lowest"), await ctx.step(work, "bad")]

    @scene.engine.function("child")
    async def child(payload: dict[str, Any], ctx: Any) -> Any:
        lower = await ctx.start("grandchild")
        return [await ctx.step(work, "lower"), *await lower.result()]

    @scene.engine.function("f")
    async def function(payload: dict[str, Any], ctx: Any) -> Any:
        lower = await ctx.start("child")
        return [await ctx.step(work, "first"), *await lower.result(), await ctx.step(work, "last")]

    started = await scene.engine.start_function("f")
    process = scene.process(warm=warm)
    await process.quiet()
    runs = {run.workflow: run for run in (await scene.engine.runs.list()).runs}
    assert {run.state for run in runs.values()} == {"failed"}
    broken = False
    executed.clear()
    if earlier:
        await scene.engine.runs.retry(runs[earlier].id)
        await process.quiet()
    assert (await scene.engine.runs.retry(started.id)).state == "running"
    await process.quiet()
    assert await scene.engine.run_result(started) == ["first", "lower", "lowest", "bad", "last"]
    assert executed == ["bad", "last"]
    assert {run.id for run in (await scene.engine.runs.list()).runs} == {run.id for run in runs.values()}
    assert (await scene.engine.kernel.verify()).problems == ()


async def test_a_crash_during_a_retry_leaves_no_parent_without_its_child(scene: Scene, monkeypatch: pytest.MonkeyPatch):
    """One commit retries the run and the failed runs below it."""
    broken = True

    @scene.engine.function("child")
    async def child(payload: dict[str, Any], ctx: Any) -> Any:
        if broken:
            raise ValueError("broken")
        return "done"

    @scene.engine.function("middle")
    async def middle(payload: dict[str, Any], ctx: Any) -> Any:
        return await (await ctx.start("child")).result()

    @scene.engine.function("f")
    async def function(payload: dict[str, Any], ctx: Any) -> Any:
        return await (await ctx.start("middle")).result()

    started = await scene.engine.start_function("f")
    process = scene.process()
    await process.quiet()
    broken = False

    def crash(point: str) -> None:
        if point == "operate.after_commit":
            raise KeyError(point)

    with monkeypatch.context() as patch:
        patch.setattr(operations, "failpoint", crash)
        with pytest.raises(KeyError):
            await scene.engine.runs.retry(started.id)
    assert {run.state for run in (await scene.engine.runs.list()).runs} == {"running"}
    await process.quiet()
    assert await scene.engine.run_result(started) == "done"
    assert (await scene.engine.kernel.verify()).problems == ()


async def test_a_retry_of_a_failed_call_makes_a_new_task(scene: Scene):
    @scene.engine.function("f")
    async def function(payload: dict[str, Any], ctx: Any) -> Any:
        return await ctx.call("work", {"n": 1})

    started = await scene.engine.start_function("f")
    process = scene.process(warm=COLD)
    await process.quiet()
    (task,) = await process.claim("handler")
    await process.fail(task)
    await process.quiet()
    with pytest.raises(Refused, match="runs retry"):
        await scene.engine.retry(task.id, payload={"n": 2})
    await scene.engine.retry(task.id)
    await process.quiet()
    (again,) = await process.claim("handler")
    assert again.id != task.id
    await process.settle(again, {"ok": True})
    await process.quiet()
    assert await scene.engine.run_result(started) == {"ok": True}


async def test_a_retry_without_a_failed_step_executes_the_last_part_again(scene: Scene):
    broken = True

    @scene.engine.function("f")
    async def function(payload: dict[str, Any], ctx: Any) -> Any:
        one = await ctx.step(done, 1)
        if broken:
            raise ValueError("a typo")
        return one

    started = await scene.engine.start_function("f")
    process = scene.process()
    await process.quiet()
    assert await scene.state(started.id) == "failed"
    broken = False
    await scene.engine.runs.retry(started.id)
    await process.quiet()
    assert await scene.engine.run_result(started) == 1


# --- fork and rerun ---


async def test_a_fork_keeps_finished_steps_and_repeats_the_rest(scene: Scene):
    executed: list[str] = []

    async def work(name: str) -> str:
        executed.append(name)
        return name

    @scene.engine.function("child")
    async def child(payload: dict[str, Any]) -> Any:
        return payload["n"]

    @scene.engine.function("f")
    async def function(payload: dict[str, Any], ctx: Any) -> Any:
        a = await ctx.step(work, "a", name="a")
        handle = await ctx.start("child", {"n": 1})
        c = await handle.result()
        b = await ctx.step(work, payload["b"], name="b")
        return [a, c, b]

    started = await scene.engine.start_function("f", {"b": "old"})
    process = scene.process(warm=COLD)
    await process.quiet()
    assert await scene.engine.run_result(started) == ["a", 1, "old"]
    executed.clear()
    step = await scene.engine.kernel.run_reads.get_step(started.id, "b")
    forked = await scene.engine.runs.fork(started.id, step.id, inputs={"b": "new"})
    await process.quiet()
    assert await scene.engine.run_result(forked) == ["a", 1, "new"]
    assert executed == ["new"]
    run = await scene.engine.kernel.runs.get_run(forked.id)
    assert (run.parent_id, run.root_id) == (started.id, started.id)
    first = await scene.engine.kernel.run_reads.get_step(started.id, "a")
    executed.clear()
    forked = await scene.engine.runs.fork(started.id, first.id)
    await process.quiet()
    assert await scene.engine.run_result(forked) == ["a", 1, "old"]
    assert executed == ["a", "old"]
    with raises_code("step_not_found"):
        await scene.engine.runs.fork(started.id, started.id)


async def test_a_rerun_starts_the_same_version_again(scene: Scene):
    @scene.engine.function("f", version=2)
    async def function(payload: dict[str, Any], ctx: Any) -> Any:
        return [payload["n"], ctx.version]

    started = await scene.engine.start_function("f", {"n": 1})
    process = scene.process()
    await process.quiet()
    scene.engine.function("f", version=3)(function)
    again = await scene.engine.runs.rerun(started.id)
    await process.quiet()
    assert await scene.engine.run_result(again) == [1, 2]


# --- other processes ---


async def test_a_cached_function_is_discarded_after_another_process_ran_it(scene: Scene):
    executed: list[str] = []

    @scene.engine.function("f")
    async def function(payload: dict[str, Any], ctx: Any) -> Any:
        for n in range(3):
            await ctx.step(done, n, name=f"step{n}")
            executed.append(f"{n}")
            await ctx.sleep(1)
        return "done"

    started = await scene.engine.start_function("f")
    one, two = scene.process(), scene.process()
    await one.quiet()
    scene.clock.advance(1)
    await two.quiet()
    scene.clock.advance(1)
    await one.quiet()
    scene.clock.advance(1)
    await one.quiet()
    assert await scene.engine.run_result(started) == "done"
    assert executed == ["0", "0", "1", "0", "1", "2"]


async def test_a_process_with_a_lost_lease_writes_no_row(scene: Scene):
    begun, go = asyncio.Event(), asyncio.Event()
    executed: list[int] = []

    async def slow() -> int:
        executed.append(len(executed) + 1)
        if len(executed) == 1:
            begun.set()
            await go.wait()
        return executed[-1]

    @scene.engine.function("f")
    async def function(payload: dict[str, Any], ctx: Any) -> Any:
        return await ctx.step(slow)

    started = await scene.engine.start_function("f")
    stuck = scene.process()
    turn = asyncio.create_task(stuck.turn())
    await begun.wait()
    scene.clock.advance(LEASE_FOR / 1000)
    other = scene.process()
    await other.quiet()
    assert await scene.engine.run_result(started) == 2
    go.set()
    await turn
    assert await scene.engine.run_result(started) == 2
    assert stuck.runner.warm == 0


async def test_suspended_functions_beyond_the_cache_are_closed_and_replayed(scene: Scene):
    closed: list[int] = []

    @scene.engine.function("f")
    async def function(payload: dict[str, Any], ctx: Any) -> Any:
        try:
            await ctx.step(done, payload["n"])
            await ctx.sleep(10)
        except asyncio.CancelledError:
            closed.append(payload["n"])
            await ctx.step(done, "harmless")
        return payload["n"]

    started = [await scene.engine.start_function("f", {"n": n}) for n in range(20)]
    process = scene.process(warm=5)
    await process.quiet()
    await asyncio.sleep(0)
    assert process.runner.warm == 5
    assert len(closed) == 15
    scene.clock.advance(10)
    await process.quiet()
    assert [await scene.engine.run_result(each) for each in started] == list(range(20))
    assert {len(await scene.steps(each.id)) for each in started} == {2}


async def test_why_lists_the_waits_of_a_suspended_function(scene: Scene):
    async def fail() -> None:
        raise ValueError("not yet")

    @scene.engine.function("child")
    async def child(payload: dict[str, Any], ctx: Any) -> Any:
        await ctx.wait_for("go")

    @scene.engine.function("f")
    async def function(payload: dict[str, Any], ctx: Any) -> Any:
        handle = await ctx.start("child")
        await ctx.gather(ctx.call("work"), handle.result(), ctx.wait_for("go", timeout=60), ctx.sleep(60), ctx.step(fail, retry=1))

    started = await scene.engine.start_function("f")
    process = scene.process()
    await process.quiet()
    reason = await scene.engine.kernel.run_reads.why(started.id)
    (child_id,) = await scene.engine.kernel.store.runs.list_children(started.id)
    (own,) = [task for task in await process.live(started.id) if task.kind == "function"]
    assert reason.code == "suspended"
    assert reason.text.startswith("waits for 1[0].work (task ")
    assert ": no live worker serves work in list default; start one with " in reason.text
    assert reason.text.endswith("; and 2 more; no live worker serves f@1 in list default")
    assert f"the run {child_id} that it started; the signal go until 2027-01-15T08:01:00.000Z; and 2 more" in reason.text
    assert (
        await scene.engine.kernel.run_reads.why(child_id)
    ).text == "waits for the signal go; no live worker serves child@1 in list default"
    assert await scene.engine.why(child_id) == await scene.engine.kernel.run_reads.why(child_id)
    assert await scene.engine.why(started) == reason
    assert (await scene.engine.why(own.id)).code == "suspended"


async def test_steps_of_functions_are_shown_like_those_of_workflows(scene: Scene):
    async def fail() -> None:
        raise ValueError("broken")

    @scene.engine.function("f")
    async def function(payload: dict[str, Any], ctx: Any) -> Any:
        await ctx.gather(ctx.step(done, 1), ctx.step(done, 2))
        await ctx.step(fail)

    started = await scene.engine.start_function("f")
    await scene.process().quiet()
    rows = [shown.row for shown in await scene.engine.kernel.run_reads.list_steps(started.id)]
    assert [(row.path, row.facet, row.status) for row in rows] == [
        ("0[0].done", "step", "completed"),
        ("0[1].done", "step", "completed"),
        ("fail", "step", "failed"),
    ]
    assert rows[0].returns == {"value": 1}
    assert rows[2].error is not None
    assert rows[2].error.message == "broken"
    run = await scene.engine.kernel.runs.get_run(started.id)
    assert run.failed_step_id == rows[2].id


@pytest.mark.parametrize("child_fails", ["never", "before its parent", "after its parent"])
@pytest.mark.parametrize("warm", [COLD, WARM])
@pytest.mark.parametrize("operation", ["retry", "reopen"])
async def test_a_run_that_continues_receives_the_ends_of_children_that_it_had_not_seen(
    scene: Scene, warm: int, child_fails: str, operation: str
):
    """They came while it was not live, or just before it failed; a child that failed is retried."""
    broken, is_early = True, child_fails == "before its parent"

    async def child_step() -> str:
        if broken and child_fails != "never":
            raise ValueError("broken")
        return "child"

    async def own_step() -> str:
        if broken:
            raise ValueError("broken")
        return "own"

    @scene.engine.function("child")
    async def child(payload: dict[str, Any], ctx: Any) -> Any:
        if not is_early:
            await ctx.wait_for("go")
        return await ctx.step(child_step)

    @scene.engine.function("f")
    async def function(payload: dict[str, Any], ctx: Any) -> Any:
        started = await ctx.start("child", on_parent_close="abandon")
        if is_early or operation == "reopen":
            await ctx.wait_for("go")
        return [await ctx.step(own_step), await started.result()]

    started = await scene.engine.start_function("f")
    process = scene.process(warm=warm)
    await process.quiet()
    (child_run,) = [run for run in (await scene.engine.runs.list()).runs if run.workflow == "child"]
    if operation == "reopen":
        await scene.engine.runs.cancel(started.id)
    elif is_early:
        await scene.engine.runs.signal(started.id, "go")
    await process.quiet()
    if not is_early:
        await scene.engine.runs.signal(child_run.id, "go")
        await process.quiet()
    broken = False
    await getattr(scene.engine.runs, operation)(started.id)
    await process.quiet()
    if operation == "reopen":
        await scene.engine.runs.signal(started.id, "go")
        await process.quiet()
    assert await scene.engine.run_result(started) == ["own", "child"]
    assert (await scene.engine.kernel.verify()).problems == ()
