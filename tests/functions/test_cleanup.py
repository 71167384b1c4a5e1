"""Canceled functions clean up: `finally` and `except Canceled` run, for a limited time; and children follow their policies."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.engines import ALL, make_engine, url_of
from tests.functions.driver import LEASE_FOR, Died, Scene, function_scene, requeued, until
from tests.functions.test_first import cancel_losers
from tests.limits import BOUND

from treadle import Canceled, Engine, RunCanceled
from treadle.kernel.queue.decide import canceled_error
from treadle.kernel.queue.engine_tasks import cancel_task, cancel_work
from treadle.kernel.store.queries import TaskFilter
from treadle.model.values import decode
from treadle.testing.recordings import record, replay_async
from treadle.workers.functions.registry import may_clean_up

COLD, WARM = 0, 1000


@pytest.fixture
async def scene(kind: str) -> AsyncIterator[Scene]:
    async with function_scene() as opened:
        yield opened


@pytest.fixture(params=ALL)
async def engine(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Engine]:
    async with make_engine(url_of(request.param, request, tmp_path)) as opened:
        yield opened


def booking(scene: Scene, wait: Callable[[Any], Any] | None = None, **options: Any) -> list[str]:
    """Register `book`, which undoes its reservation when it is canceled. Return the steps that were executed."""
    executed: list[str] = []

    async def note(what: str) -> str:
        executed.append(what)
        return what

    @scene.engine.function("book", **options)
    async def book(payload: dict[str, Any], ctx: Any) -> Any:
        await ctx.step(note, "reserve", name="reserve")
        try:
            return await (wait or (lambda ctx: ctx.wait_for("paid")))(ctx)
        except Canceled as error:
            await ctx.step(note, f"refund: {error}", name="refund")
            raise
        finally:
            await ctx.step(note, "release", name="release")
            await ctx.call("tell", {})

    return executed


def gathered(ctx: Any) -> Any:
    return ctx.gather(ctx.wait_for("a"), ctx.sleep(100), ctx.call("job", {}))


def raced(ctx: Any) -> Any:
    return ctx.first(ctx.wait_for("a"), job=ctx.call("job", {}))


@pytest.mark.parametrize("warm", [COLD, WARM])
@pytest.mark.parametrize("wait", [None, gathered, raced, lambda ctx: ctx.sleep(1000), lambda ctx: ctx.call("job", {})])
async def test_a_requeued_function_cleans_up_and_is_canceled_then(scene: Scene, warm: int, wait: Any):
    executed = booking(scene, wait)
    started = await scene.engine.start_function("book")
    process = scene.process(warm=warm)
    await process.quiet()
    run = await scene.engine.runs.cancel(started.id, actor="ada", reason="ordered twice")
    assert run.state == "running"
    assert (await scene.engine.runs.cancel(started.id, actor="bob")).state == "running"  # canceling twice is a no-op
    said = (await scene.engine.kernel.run_reads.why(started.id)).text
    assert "is canceled (ordered twice) and cleans up until" in said
    await cancel_losers(process)
    await process.quiet()
    assert executed == ["reserve", "refund: ordered twice", "release"]
    assert "waits for tell" in (await scene.engine.kernel.run_reads.why(started.id)).text
    await process.quiet(lambda name, payload: {})
    run = await scene.engine.kernel.runs.get_run(started.id)
    assert (run.state, run.error) == ("canceled", canceled_error("ada", "ordered twice"))
    assert executed == ["reserve", "refund: ordered twice", "release"]
    jobs = await scene.engine.kernel.store.tasks.list_matching(TaskFilter(name="job"), 10)
    assert {task.state for task in jobs} <= {"canceled"}
    assert (await scene.engine.kernel.verify()).problems == ()
    scene.clock.advance(60)
    await scene.engine.kernel.store.tasks.wake(100)
    assert await cancel_losers(process) >= 1  # the timer finds nothing to do
    assert await scene.state(started.id) == "canceled"


async def test_a_running_function_is_stopped_and_cleans_up(scene: Scene):
    executing, stopped = asyncio.Event(), asyncio.Event()
    count = 0

    async def slow() -> None:
        nonlocal count
        count += 1
        executing.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    executed = booking(scene, lambda ctx: ctx.step(slow))
    started = await scene.engine.start_function("book")
    old, new = scene.process(), scene.process()
    turn = asyncio.create_task(old.turn())
    await executing.wait()
    await scene.engine.runs.cancel(started.id)
    await new.quiet(lambda name, payload: {})
    assert await scene.state(started.id) == "canceled"
    assert (count, executed[-1]) == (1, "release")
    assert ("1", "step slow", "canceled") in await scene.steps(started.id)
    turn.cancel()
    await asyncio.wait([turn])


async def test_cleanup_ends_at_its_limit(scene: Scene):
    booking(scene, cleanup_timeout=5)
    started = await scene.engine.start_function("book")
    process = scene.process()
    await process.quiet()
    await scene.engine.runs.cancel(started.id, actor="ada", reason="too late")
    await process.quiet()  # waits for `tell`, which nobody answers
    assert await scene.state(started.id) == "running"
    scene.clock.advance(5)
    await scene.engine.kernel.store.tasks.wake(100)
    await cancel_losers(process)
    run = await scene.engine.kernel.runs.get_run(started.id)
    assert (run.state, run.error) == ("canceled", canceled_error("ada", "too late. Its cleanup did not end within 5 s."))
    assert await process.live(started.id) == []


async def test_a_recording_of_a_canceled_run_is_replayed():
    async with function_scene() as scene:
        executed = booking(scene, raced)
        started = await scene.engine.start_function("book")
        process = scene.process()
        await process.quiet()
        await scene.engine.runs.cancel(started.id)
        await process.quiet(lambda name, payload: {})
        recording = await record(scene.engine, started.id)
    await replay_async(scene.engine, recording)
    assert (recording.state, len(executed)) == ("canceled", 3)


async def test_force_ends_a_run_without_cleanup(scene: Scene):
    executed = booking(scene)
    started = await scene.engine.start_function("book")
    process = scene.process()
    await process.quiet()
    await scene.engine.runs.cancel(started.id)
    assert (await scene.engine.runs.cancel(started.id, force=True)).state == "canceled"
    await process.quiet()
    assert executed == ["reserve"]


@pytest.mark.parametrize("state", ["never_claimed", "paused"])
async def test_a_run_can_be_canceled_in_every_state(scene: Scene, state: str):
    executed = booking(scene)
    started = await scene.engine.start_function("book")
    process = scene.process()
    if state == "paused":
        await process.quiet()
        await scene.engine.runs.pause(started.id)
    await scene.engine.runs.cancel(started.id)
    await process.quiet(lambda name, payload: {})
    assert await scene.state(started.id) == "canceled"
    assert executed == ([] if state == "never_claimed" else ["reserve", "refund: Canceled by python.", "release"])


async def test_a_function_without_cleanup_ends_immediately(scene: Scene):
    @scene.engine.function("plain")
    async def plain(payload: dict[str, Any], ctx: Any) -> None:
        await ctx.wait_for("go")

    started = await scene.engine.start_function("plain")
    await scene.process().quiet()
    assert (await scene.engine.runs.cancel(started.id)).state == "canceled"


@pytest.mark.parametrize("end", ["return", "raise", "continue"])
async def test_a_canceled_run_is_canceled_however_its_code_ends(scene: Scene, end: str):
    @scene.engine.function("f")
    async def function(payload: dict[str, Any], ctx: Any) -> Any:
        try:
            await ctx.wait_for("go")
        except Canceled:
            if end == "raise":
                raise ValueError("no way back") from None
            if end == "continue":
                await ctx.continue_as_new({})
        return "swallowed"

    started = await scene.engine.start_function("f")
    process = scene.process()
    await process.quiet()
    await scene.engine.runs.cancel(started.id, reason="enough")
    await process.quiet()
    run = await scene.engine.kernel.runs.get_run(started.id)
    expected = "enough. Its cleanup failed: ValueError: no way back" if end == "raise" else "enough"
    assert (run.state, decode(run.error)["message"]) == ("canceled", expected)
    with pytest.raises(RunCanceled):
        await scene.engine.run_result(started, timeout=BOUND)


async def test_each_branch_of_a_gather_cleans_up(scene: Scene):
    done: list[str] = []

    async def note(what: str) -> None:
        done.append(what)

    @scene.engine.function("f")
    async def function(payload: dict[str, Any], ctx: Any) -> None:
        async def branch(name: str) -> None:
            try:
                await ctx.sleep(1000)
            finally:
                await ctx.step(note, name, name=name)

        try:
            await ctx.gather(branch("a"), branch("b"), ctx.step(note, "quick"))
        finally:
            await ctx.gather(ctx.step(note, "c"), ctx.sleep(1))

    started = await scene.engine.start_function("f")
    process = scene.process(warm=COLD)
    await process.quiet()
    await scene.engine.runs.cancel(started.id)
    await process.quiet()
    scene.clock.advance(1)
    await process.quiet()
    assert await scene.state(started.id) == "canceled"
    assert sorted(done) == ["a", "b", "c", "quick"]


@settings(max_examples=10, deadline=None)
@given(
    dies_at=st.integers(1, 6),
    after=st.booleans(),
    warm=st.sampled_from([COLD, WARM]),
    wait=st.sampled_from([None, gathered, raced]),
)
def test_cleanup_resumes_after_any_crash_and_repeats_no_recorded_step(dies_at: int, *, after: bool, warm: int, wait: Any):
    """No recorded step of the cleanup runs again."""
    asyncio.run(_die_in_cleanup(dies_at, after=after, warm=warm, wait=wait))


async def _die_in_cleanup(dies_at: int, *, after: bool, warm: int, wait: Any) -> None:
    async with function_scene() as scene:
        executed = booking(scene, wait, cleanup_timeout=10_000)
        started = await scene.engine.start_function("book")
        await scene.process().quiet()
        await scene.engine.runs.cancel(started.id)
        process = scene.process(dies_at=dies_at, after=after, warm=warm)
        for _ in range(4):
            try:
                await process.quiet(lambda name, payload: {})
            except Died:
                process.die()
                process = scene.process(warm=warm)
            scene.clock.advance(LEASE_FOR / 1000)
        assert await scene.state(started.id) == "canceled"
        steps = {name: state for _, name, state in await scene.steps(started.id)}
        assert (steps["step refund"], steps["step release"], steps["call tell"]) == ("completed", "completed", "completed")
        again = [each for each in set(executed) if executed.count(each) > 1]
        assert len(again) <= (0 if after else 1)
        assert (await scene.engine.kernel.verify()).problems == ()


# --- policies of children ---


def family(scene: Scene, policy: str | None, *, cleans: bool, ends: str) -> list[str]:
    done: list[str] = []

    async def note(what: str) -> None:
        done.append(what)

    @scene.engine.function("child", cleanup_timeout=60 if cleans else 0)
    async def child(payload: dict[str, Any], ctx: Any) -> str:
        try:
            return str(await ctx.wait_for("go"))
        finally:
            await ctx.step(note, "cleaned")

    @scene.engine.function("parent")
    async def parent(payload: dict[str, Any], ctx: Any) -> None:
        await ctx.start("child", on_parent_close=policy)
        await ctx.wait_for("end")
        if ends == "fail":
            raise ValueError("over")

    return done


@pytest.mark.parametrize("cleans", [False, True])
@pytest.mark.parametrize(
    ("policy", "ends", "expected"),
    [
        (None, "complete", "running"),
        (None, "fail", "running"),
        (None, "cancel", "canceled"),
        ("cancel", "complete", "canceled"),
        ("cancel", "fail", "canceled"),
        ("cancel", "cancel", "canceled"),
        ("terminate", "complete", "canceled"),
        ("terminate", "cancel", "canceled"),
        ("abandon", "complete", "running"),
        ("abandon", "cancel", "running"),
    ],
)
async def test_a_child_follows_its_policy(scene: Scene, policy: str | None, ends: str, expected: str, *, cleans: bool):
    done = family(scene, policy, cleans=cleans, ends=ends)
    started = await scene.engine.start_function("parent")
    process = scene.process()
    await process.quiet()
    (child,) = await scene.engine.kernel.store.runs.list_children(started.id)
    if ends == "cancel":
        await scene.engine.runs.cancel(started.id)
    else:
        await scene.engine.signal(started, "end")
    for _ in range(3):
        await process.quiet()
        await cancel_losers(process)
    assert await scene.state(child) == expected
    assert done == (["cleaned"] if cleans and expected == "canceled" and policy != "terminate" else [])
    assert (await scene.engine.kernel.verify()).problems == ()


@pytest.mark.parametrize(("policy", "cleaned"), [(None, 1), ("cancel", 1), ("terminate", 0)])
async def test_a_child_follows_its_policy_when_its_parent_cleans_up(scene: Scene, policy: str | None, cleaned: int):
    done = family(scene, policy, cleans=True, ends="")

    @scene.engine.function("tidy")
    async def tidy(payload: dict[str, Any], ctx: Any) -> None:
        await ctx.start("child", on_parent_close=policy)
        try:
            await ctx.wait_for("end")
        finally:
            await ctx.step(str, name="tidy")

    started = await scene.engine.start_function("tidy")
    process = scene.process()
    await process.quiet()
    (child,) = await scene.engine.kernel.store.runs.list_children(started.id)
    await scene.engine.runs.cancel(started.id)
    for _ in range(3):
        await process.quiet()
        await cancel_losers(process)
    assert (await scene.state(started.id), await scene.state(child)) == ("canceled", "canceled")
    assert len(done) == cleaned


@pytest.mark.parametrize(
    ("policy", "state", "cleaned"),
    [(None, "running", 0), ("abandon", "running", 0), ("cancel", "canceled", 1), ("terminate", "canceled", 0)],
)
async def test_a_child_that_a_cleanup_starts_follows_its_policy_and_no_timer(
    scene: Scene, policy: str | None, state: str, cleaned: int
):
    done = family(scene, policy, cleans=True, ends="")

    @scene.engine.function("tidy")
    async def tidy(payload: dict[str, Any], ctx: Any) -> None:
        try:
            await ctx.wait_for("end")
        finally:
            child = await ctx.start("child", on_parent_close=policy)
            await ctx.step(str, child.id, name="started")
            await ctx.wait_for("told")

    started = await scene.engine.start_function("tidy")
    process = scene.process()
    await process.quiet()
    await scene.engine.runs.cancel(started.id)
    await process.quiet()
    (child,) = await scene.engine.kernel.store.runs.list_children(started.id)
    await scene.engine.signal(started, "told")
    for wait_for in (0, 61):  # the limit of the cleanup is 60 s
        scene.clock.advance(wait_for)
        await scene.engine.kernel.store.tasks.wake(100)
        for _ in range(3):
            await process.quiet()
            await cancel_losers(process)
        assert (await scene.state(started.id), await scene.state(child)) == ("canceled", state)
        assert len(done) == cleaned


async def test_a_failed_cancel_does_not_spare_other_tasks_and_runs(scene: Scene):
    asked: list[str] = []

    async def cancel(each: Any, **_: Any) -> Any:
        asked.append(each)
        if each in ("task 1", "run 1"):
            raise OSError(each)

    kernel = scene.engine.kernel
    task = cancel_task("source", "default", "over", ["task 1", "task 2"], ["run 1", "run 2"])
    with pytest.raises(OSError, match="task 1"):
        await cancel_work(kernel.store, cancel, lambda: cancel, decode(task.payload))
    assert asked == ["task 1", "task 2", "run 1", "run 2"]


async def test_a_child_that_loses_a_first_is_canceled_unless_abandoned(scene: Scene):
    family(scene, None, cleans=False, ends="")

    @scene.engine.function("f")
    async def function(payload: dict[str, Any], ctx: Any) -> Any:
        kept = await ctx.start("child", on_parent_close="abandon")
        winner = await ctx.first(kept.result(), late=ctx.sleep(1))
        return [winner.name, await kept.result()]

    started = await scene.engine.start_function("f")
    process = scene.process(warm=COLD)
    await process.quiet()
    (child,) = await scene.engine.kernel.store.runs.list_children(started.id)
    scene.clock.advance(1)
    await process.quiet()
    assert await cancel_losers(process) == 0
    await scene.engine.signal(child, "go", 7)
    await process.quiet()
    assert await scene.engine.run_result(started, timeout=BOUND) == ["late", "7"]


# --- which code may clean up ---


async def no_ctx(payload: dict[str, Any]) -> None: ...


async def plain(payload: dict[str, Any], ctx: Any) -> Any:
    return await ctx.gather(*(ctx.sleep(each) for each in payload["times"]))


async def tries(payload: dict[str, Any], ctx: Any) -> None:
    try:
        await ctx.sleep(1)
    finally:
        await ctx.sleep(1)


async def passes_on(payload: dict[str, Any], ctx: Any) -> None:
    await tries(payload, ctx)


async def within(payload: dict[str, Any], ctx: Any) -> None:
    async with asyncio.timeout(None):
        await ctx.sleep(1)


async def nested(payload: dict[str, Any], ctx: Any) -> None:
    async def inner() -> None:
        try:
            await ctx.sleep(1)
        except ValueError:
            return

    await inner()


@pytest.mark.parametrize(
    ("code", "may"), [(no_ctx, False), (plain, False), (tries, True), (passes_on, True), (within, True), (nested, True)]
)
def test_code_that_may_clean_up_is_recognised(code: Any, *, may: bool):
    assert may_clean_up(code) is may
    assert may_clean_up(eval("lambda: None")) is True


# --- with workers, on every store ---


@pytest.mark.postgres
async def test_workers_run_the_cleanup_of_a_canceled_function(engine: Engine):
    done: list[str] = []

    async def note(what: str) -> None:
        done.append(what)

    @engine.function("f")
    async def function(payload: dict[str, Any], ctx: Any) -> None:
        child = await ctx.start("f", {"depth": payload["depth"] - 1}) if payload["depth"] else None
        try:
            await (ctx.wait_for("never") if child is None else child.result())
        finally:
            await ctx.step(note, f"level {payload['depth']}")

    async with engine.worker():
        started = await engine.start_function("f", {"depth": 1})
        await until(lambda: requeued(engine, started.id))
        (child,) = await engine.kernel.store.runs.list_children(started.id)
        await until(lambda: requeued(engine, child))
        await engine.runs.cancel(started.id, actor="ada", reason="enough")
        with pytest.raises(RunCanceled, match="enough"):
            await engine.run_result(started, timeout=BOUND)
        with pytest.raises(RunCanceled, match="was canceled"):
            await engine.run_result(child, timeout=BOUND)
    assert sorted(done) == ["level 0", "level 1"]
