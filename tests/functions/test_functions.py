"""Durable functions: what each operation of `ctx` promises, through suspension, replay, and other processes."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.engines import ALL, make_engine, url_of
from tests.errors import raises_code
from tests.functions.driver import Process, Scene, function_scene, requeued, until
from tests.limits import BOUND

from treadle import Engine, RetryPolicy
from treadle.kernel.functions.steps import StepIds, is_after, step_id
from treadle.model.errors import (
    IdempotencyKeyReused,
    IllegalTransition,
    InvalidInput,
    InvalidName,
    MisusedContext,
    RunCanceled,
    RunFailed,
    SignalTimeout,
    StepFailed,
    TaskCanceled,
    TaskFailed,
)
from treadle.model.ids import uuid7
from treadle.settings import Settings

COLD, WARM = 0, 1000


@pytest.fixture(params=ALL)
async def engine(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Engine]:
    async with make_engine(url_of(request.param, request, tmp_path)) as opened:
        yield opened


@pytest.fixture
async def scene(kind: str) -> AsyncIterator[Scene]:
    async with function_scene() as opened:
        yield opened


async def done(value: Any = None) -> Any:
    return value


class Backwards:
    """A codec that nobody can read by looking."""

    name = "backwards"

    def encode(self, text: str) -> str:
        return text[::-1]

    def decode(self, stored: str) -> str:
        return stored[::-1]


async def test_all_stored_values_of_a_function_are_encoded():
    engine = Engine("memory://", settings=Settings(), codec=Backwards())

    async def fail() -> None:
        raise ValueError("secret error")

    @engine.function("child")
    async def child() -> str:
        return "secret child"

    @engine.function("f")
    async def function(payload: dict[str, Any], ctx: Any) -> Any:
        kept = [await ctx.step(done, payload), await ctx.wait_for("go"), await (await ctx.start("child")).result()]
        kept.append(await ctx.effect("pay", lambda: "secret effect", {"secret": 1}))
        try:
            await ctx.step(fail)
        except StepFailed as error:
            kept.append(error.error)
        return kept

    async with engine:
        started = await engine.start_function("f", {"secret": 1})
        await engine.signal(started, "go", "secret signal")
        stored = [message.document for message in await engine.kernel.store.records.list_messages(started.id, 10)]
        async with engine.worker():
            result = await engine.run_result(started, timeout=BOUND)
        assert result == [{"secret": 1}, "secret signal", "secret child", "secret effect", "secret error"]
        stored += [step.document for step in await engine.kernel.store.runs.list_steps(started.id, None, 100)]
        assert len(stored) == 7
        assert not any("secret" in text for text in stored)


# --- with a worker, on every store ---


@pytest.mark.postgres
async def test_a_function_executes_its_steps_and_returns(engine: Engine):
    @engine.handler("double")
    async def double(payload: dict[str, Any]) -> dict[str, Any]:
        return {"n": payload["n"] * 2}

    @engine.function("child")
    async def child(payload: dict[str, Any], ctx: Any) -> Any:
        await ctx.sleep(0.01)
        return [payload["n"], None]

    @engine.function("everything")
    async def everything(payload: dict[str, Any], ctx: Any) -> Any:
        one = await ctx.step(done, payload["x"])
        two = await ctx.step(lambda: {"sync": one})
        await ctx.sleep(0.05)
        three = await ctx.call("double", {"n": 4})
        four = await ctx.gather(*(ctx.call("double", {"n": n}) for n in range(20)), ctx.step(done, 5), ctx.sleep(0.01))
        handle = await ctx.start("child", {"n": 6})
        told = await ctx.wait_for("go")
        return {"one": one, "two": two, "three": three, "four": four, "five": await handle.result(), "told": told}

    async with engine.worker():
        started = await engine.start_function("everything", {"x": 1})
        assert started.created
        await engine.signal(started, "go", {"now": True})
        result = await engine.run_result(started, timeout=BOUND)
    assert result == {
        "one": 1,
        "two": {"sync": 1},
        "three": {"n": 8},
        "four": [{"n": n * 2} for n in range(20)] + [5, None],
        "five": [6, None],
        "told": {"now": True},
    }
    run = await engine.kernel.runs.get_run(started.id)
    assert (run.state, run.kind, run.workflow, run.flow_id) == ("completed", "function", "everything", "fn:everything@1")
    assert run.steps == 29
    report = await engine.kernel.verify()
    assert report.problems == ()


async def test_a_start_with_a_key_creates_one_run(engine: Engine):
    @engine.function("once")
    async def once(payload: dict[str, Any]) -> Any:
        return payload

    first = await engine.start_function("once", {"n": 1}, idempotency_key="k")
    second = await engine.start_function("once", {"n": 1}, idempotency_key="k")
    assert (second.id, second.created) == (first.id, False)
    with pytest.raises(IdempotencyKeyReused, match=first.id):
        await engine.start_function("once", {"n": 2}, idempotency_key="k")
    async with engine.worker():
        assert await engine.run_result(first, timeout=BOUND) == {"n": 1}


async def test_a_function_that_raises_fails_its_run(engine: Engine):
    @engine.function("bad")
    async def bad(payload: dict[str, Any], ctx: Any) -> Any:
        await ctx.step(done, 1)
        raise ValueError("no good")

    async with engine.worker():
        started = await engine.start_function("bad")
        with pytest.raises(RunFailed, match="no good"):
            await engine.run_result(started, timeout=BOUND)
    assert (await engine.kernel.runs.get_run(started.id)).state == "failed"
    assert (await engine.kernel.run_reads.why(started.id)).code == "finished_failed"


async def test_big_values_pass_through_steps_calls_signals_and_results(engine: Engine):
    big = "x" * 50_000

    @engine.handler("grow")
    async def grow(payload: dict[str, Any]) -> dict[str, Any]:
        return {"big": payload["big"] + "!"}

    @engine.function("big")
    async def function(payload: dict[str, Any], ctx: Any) -> Any:
        one = await ctx.step(done, payload["big"])
        two = await ctx.call("grow", {"big": one})
        await ctx.sleep(0.01)
        three = await ctx.wait_for("more")
        return [one, two, three]

    async with engine.worker():
        started = await engine.start_function("big", {"big": big})
        await engine.signal(started, "more", big)
        assert await engine.run_result(started, timeout=BOUND) == [big, {"big": big + "!"}, big]


async def test_a_gather_over_many_children_wakes_its_parent_once(engine: Engine):
    @engine.handler("child")
    async def child(payload: dict[str, Any]) -> dict[str, Any]:
        return payload

    @engine.function("many")
    async def many(payload: dict[str, Any], ctx: Any) -> Any:
        found = await ctx.gather(*(ctx.call("child", {"n": n}) for n in range(payload["count"])))
        return sum(each["n"] for each in found)

    started = await engine.start_function("many", {"count": 1000})
    async with engine.worker():
        assert await engine.run_result(started, timeout=BOUND) == sum(range(1000))
    (own,) = await engine.kernel.reads.list_tasks(kind="function")
    assert own.claim_version == 2


async def test_continue_as_new_ends_one_run_and_starts_the_next(engine: Engine):
    @engine.function("counter", max_steps=3)
    async def counter(payload: dict[str, Any], ctx: Any) -> Any:
        n = await ctx.step(done, payload["n"] + 1)
        if n < 5:
            await ctx.continue_as_new({"n": n})
        return n

    @engine.function("parent")
    async def parent(payload: dict[str, Any], ctx: Any) -> Any:
        child = await ctx.start("counter", {"n": 2})
        return await child.result()

    async with engine.worker():
        started = await engine.start_function("counter", {"n": 0})
        assert await engine.run_result(started, timeout=BOUND) == 5
        above = await engine.start_function("parent")
        assert await engine.run_result(above, timeout=BOUND) == 5
    runs = await engine.kernel.run_reads.list_runs(workflow="counter")
    assert len(runs) == 5 + 3


RETURNED = [None, 7, "text", {"result": 1}, {"continued_as": "no run"}, [{"continued_as": 1}], "x" * 20_000]


@pytest.mark.parametrize("value", RETURNED, ids=lambda value: str(value)[:20])
async def test_every_return_value_of_a_function_is_its_result(engine: Engine, monkeypatch: pytest.MonkeyPatch, value: Any):
    looked: list[str] = []
    find_last_link = engine.kernel.store.runs.find_last_link

    async def noted(lineage_id: str) -> Any:
        looked.append(lineage_id)
        return await find_last_link(lineage_id)

    @engine.function("answer")
    async def answer(payload: dict[str, Any], ctx: Any) -> Any:
        return value

    monkeypatch.setattr(engine.kernel.store.runs, "find_last_link", noted)
    async with engine.worker():
        started = await engine.start_function("answer")
        assert await engine.run_result(started, timeout=BOUND) == value
        assert await engine.run_result(started, timeout=BOUND) == value
    assert bool(looked) == (value == RETURNED[-1])  # a value that is stored elsewhere does not show that the function returned


async def test_a_worker_that_stops_leaves_its_functions_to_the_next(engine: Engine):
    executed: list[int] = []

    async def note(n: int) -> int:
        executed.append(n)
        return n

    @engine.function("long")
    async def long(payload: dict[str, Any], ctx: Any) -> Any:
        first = await ctx.step(note, 1)
        await ctx.wait_for("go")
        return first + await ctx.step(note, 2)

    started = await engine.start_function("long")
    async with engine.worker():
        await until(lambda: requeued(engine, started.id))
    async with engine.worker():
        await engine.signal(started, "go")
        assert await engine.run_result(started, timeout=BOUND) == 3
    assert executed == [1, 2]


async def test_the_blocking_engine_starts_functions(tmp_path: Path):
    engine = make_engine(f"sqlite:///{tmp_path / 'treadle.db'}")

    @engine.function("wait")
    async def wait(payload: dict[str, Any], ctx: Any) -> Any:
        return [payload, await ctx.wait_for("go")]

    with engine.blocking() as blocking:
        blocking.start_worker()
        started = blocking.start_function("wait", {"n": 1})
        blocking.signal(started, "go", 2)
        assert blocking.run_result(started, timeout=BOUND) == [{"n": 1}, 2]


# --- step by step ---


@pytest.mark.parametrize("warm", [COLD, WARM])
async def test_timers_occupy_no_worker_and_survive_a_restart(scene: Scene, warm: int):
    @scene.engine.function("sleeper")
    async def sleeper(payload: dict[str, Any], ctx: Any) -> Any:
        before = ctx.now()
        await ctx.sleep(timedelta(days=3))
        await ctx.sleep_until(before + timedelta(days=5))
        return (ctx.now() - before).total_seconds()

    started = await scene.engine.start_function("sleeper")
    process = scene.process(warm=warm)
    await process.quiet()
    (task,) = await process.live(started.id)
    assert (task.owner_id, task.wake_at) == (None, scene.clock.now() + 86_400_000)  # it looks once a day at least
    for _ in range(3):
        scene.clock.advance(timedelta(days=1) - timedelta(milliseconds=1))
        await process.quiet()
    process.die()
    scene.clock.advance(timedelta(days=2, milliseconds=3))
    await scene.process(warm=warm).quiet()
    assert await scene.engine.run_result(started) == 5 * 86_400


async def test_a_failing_step_is_retried_by_its_policy_without_blocking_others(scene: Scene):
    attempts: list[int] = []

    async def flaky() -> str:
        attempts.append(scene.clock.now())
        if len(attempts) < 4:
            raise OSError("not yet")
        return "done"

    @scene.engine.function("retry")
    async def function(payload: dict[str, Any], ctx: Any) -> Any:
        return await ctx.step(flaky, retry=RetryPolicy.of(3, first=10))

    started = await scene.engine.start_function("retry")
    begun = scene.clock.now()
    process = scene.process(warm=COLD)
    await process.quiet()
    (task,) = await process.live(started.id)
    assert (task.owner_id, task.failures, task.wake_at) == (None, 0, begun + 10_000)
    assert await scene.steps(started.id) == [("0", "step flaky", "pending")]
    for seconds in (10, 20, 40):
        scene.clock.advance(seconds)
        await process.quiet()
    assert await scene.engine.run_result(started) == "done"
    assert [at - begun for at in attempts] == [0, 10_000, 30_000, 70_000]


async def test_a_permanently_failed_step_raises_the_same_error_in_every_replay(scene: Scene):
    async def fail() -> None:
        raise LookupError("gone")

    raised: list[tuple[str, str | None, str]] = []

    @scene.engine.function("fail")
    async def function(payload: dict[str, Any], ctx: Any) -> Any:
        try:
            await ctx.step(fail)
        except StepFailed as error:
            raised.append((error.error_code, error.type, error.error))
        await ctx.sleep(1)
        return "caught"

    started = await scene.engine.start_function("fail")
    process = scene.process(warm=COLD)
    await process.quiet()
    scene.clock.advance(1)
    await process.quiet()
    assert await scene.engine.run_result(started) == "caught"
    assert raised == [("step_error", "LookupError", "gone")] * 2


async def test_a_step_result_that_is_not_json_fails_without_a_retry(scene: Scene):
    @scene.engine.function("odd")
    async def function(payload: dict[str, Any], ctx: Any) -> Any:
        try:
            await ctx.step(done, {1, 2}, retry=5)
        except StepFailed as error:
            return [error.error_code, error.error]
        return None

    started = await scene.engine.start_function("odd")
    await scene.process().quiet()
    code, message = await scene.engine.run_result(started)
    assert code == "invalid_result"
    assert "not JSON" in message


async def test_a_result_that_is_not_json_fails_the_run(scene: Scene):
    @scene.engine.function("odd")
    async def function() -> Any:
        return object()

    started = await scene.engine.start_function("odd")
    await scene.process().quiet()
    with pytest.raises(RunFailed, match="cannot be stored"):
        await scene.engine.run_result(started)


async def test_a_step_returns_the_value_of_a_replay():
    async with function_scene() as scene:

        @scene.engine.function("tuple")
        async def function(payload: dict[str, Any], ctx: Any) -> Any:
            return isinstance(await ctx.step(done, (1, 2)), list)

        started = await scene.engine.start_function("tuple")
        await scene.process().quiet()
        assert await scene.engine.run_result(started) is True


async def test_a_step_that_takes_too_long_is_stopped():
    async with make_engine("memory://") as engine:

        @engine.function("slow")
        async def function(payload: dict[str, Any], ctx: Any) -> Any:
            try:
                await ctx.step(asyncio.sleep, 60, timeout=0.02)
            except StepFailed as error:
                return error.error_code
            return None

        async with engine.worker():
            started = await engine.start_function("slow")
            assert await engine.run_result(started, timeout=BOUND) == "timeout"


async def test_names_are_numbered_and_only_explicit_keys_must_not_repeat(scene: Scene):
    @scene.engine.function("names")
    async def function(payload: dict[str, Any], ctx: Any) -> Any:
        await ctx.step(done)
        await ctx.step(done)
        await ctx.gather(ctx.step(done), ctx.step(done))
        await ctx.step(done, key="charge")
        try:
            await ctx.step(done, key="charge")
        except InvalidInput as error:
            return f"{error.code}: {error}"
        return None

    started = await scene.engine.start_function("names")
    await scene.process().quiet()
    answer = await scene.engine.run_result(started)
    assert answer.startswith("repeated_key: ")
    assert "'charge'" in answer
    assert await scene.steps(started.id) == [
        ("0", "step done", "completed"),
        ("1", "step done#2", "completed"),
        ("2.0.0", "step done", "completed"),
        ("2.1.0", "step done", "completed"),
        ("3", "step charge", "completed"),
    ]


async def test_failed_and_canceled_calls_raise(scene: Scene):
    @scene.engine.function("calls")
    async def function(payload: dict[str, Any], ctx: Any) -> Any:
        try:
            await ctx.call("one")
        except TaskFailed as error:
            said = error.error_code
        try:
            await ctx.call("two")
        except TaskCanceled as error:
            return [said, str(error)]
        return None

    started = await scene.engine.start_function("calls")
    process = scene.process()
    await process.quiet()
    (task,) = await process.claim("handler")
    assert (task.run_id, task.flow_id, task.root_id) == (started.id, "fn:calls@1", started.id)
    await process.fail(task)
    await process.quiet()
    (task,) = await process.claim("handler")
    await scene.engine.cancel(task.id, reason="not wanted")
    await process.quiet()
    code, message = await scene.engine.run_result(started)
    assert code == "boom"
    assert "not wanted" in message


async def test_a_gather_waits_for_all_and_raises_the_first_failure_in_order(scene: Scene):
    ended: list[int] = []

    async def after(seconds: int, ctx: Any) -> None:
        await ctx.sleep(seconds)
        ended.append(seconds)
        if seconds != 2:
            raise ValueError(f"failed after {seconds}")

    @scene.engine.function("all")
    async def function(payload: dict[str, Any], ctx: Any) -> Any:
        try:
            await ctx.gather(after(3, ctx), after(1, ctx), after(2, ctx))
        except ValueError as error:
            return str(error)
        return None

    started = await scene.engine.start_function("all")
    process = scene.process()
    for _ in range(4):
        await process.quiet()
        scene.clock.advance(1)
    assert await scene.engine.run_result(started) == "failed after 3"
    assert ended == [1, 2, 3]


async def test_a_branch_continues_while_another_executes():
    async with make_engine("memory://") as engine:
        go = asyncio.Event()

        @engine.handler("quick")
        async def quick(payload: dict[str, Any]) -> dict[str, Any]:
            return {"n": 1}

        async def call_then_go(ctx: Any) -> None:
            await ctx.call("quick")
            await ctx.sleep(0.01)
            go.set()

        @engine.function("both")
        async def function(payload: dict[str, Any], ctx: Any) -> Any:
            await ctx.gather(ctx.step(go.wait), call_then_go(ctx))
            return "done"

        async with engine.worker():
            started = await engine.start_function("both")
            assert await engine.run_result(started, timeout=BOUND) == "done"


async def test_failed_and_canceled_children_raise(scene: Scene):
    @scene.engine.function("child")
    async def child(payload: dict[str, Any], ctx: Any) -> Any:
        if payload["n"] == 1:
            raise ValueError("child failed")
        await ctx.wait_for("never")

    @scene.engine.function("parent")
    async def parent(payload: dict[str, Any], ctx: Any) -> Any:
        said = []
        for n in (1, 2):
            handle = await ctx.start("child", {"n": n})
            try:
                await handle.result()
            except (RunFailed, RunCanceled) as error:
                said.append(f"{error.code}: {error}")
        return said

    started = await scene.engine.start_function("parent")
    process = scene.process(warm=COLD)
    await process.quiet()
    (child_id,) = await scene.engine.kernel.store.runs.list_children(started.id)
    run = await scene.engine.kernel.runs.get_run(child_id)
    assert (run.parent_id, run.root_id, run.trace_id) == (started.id, started.id, started.id)
    await scene.engine.runs.cancel(child_id, reason="enough")
    await process.quiet()
    failed, canceled = await scene.engine.run_result(started)
    assert failed.startswith("run_failed")
    assert "child failed" in failed
    assert canceled.startswith("run_canceled")
    assert "enough" in canceled


# --- signals ---


@pytest.mark.parametrize("warm", [COLD, WARM])
async def test_signals_are_received_in_order(scene: Scene, warm: int):
    @scene.engine.function("listen")
    async def function(payload: dict[str, Any], ctx: Any) -> Any:
        first = await ctx.wait_for("a")
        other = await ctx.wait_for("b")
        return [first, other, await ctx.wait_for("a"), await ctx.wait_for("a")]

    started = await scene.engine.start_function("listen")
    assert await scene.engine.signal(started, "a", 1)
    assert await scene.engine.signal(started, "a", 2)
    process = scene.process(warm=warm)
    await process.quiet()
    assert [state for _, _, state in await scene.steps(started.id)] == ["completed", "running"]
    await scene.engine.signal(started, "b")
    await process.quiet()
    await scene.engine.signal(started, "a", 3)
    await process.quiet()
    assert await scene.engine.run_result(started) == [1, None, 2, 3]
    with pytest.raises(IllegalTransition, match="completed"):
        await scene.engine.signal(started, "a", 4)


async def test_a_signal_with_a_key_is_delivered_once_even_after_it_was_consumed(scene: Scene):
    @scene.engine.function("listen")
    async def function(payload: dict[str, Any], ctx: Any) -> Any:
        return [await ctx.wait_for("a"), await ctx.wait_for("a")]

    started = await scene.engine.start_function("listen")
    process = scene.process(warm=COLD)
    assert await scene.engine.signal(started, "a", 1, idempotency_key="k")
    assert not await scene.engine.signal(started, "a", 1, idempotency_key="k")
    await process.quiet()
    assert not await scene.engine.signal(started, "a", 1, idempotency_key="k")
    assert await scene.engine.signal(started, "a", 2, idempotency_key="other")
    await process.quiet()
    assert await scene.engine.run_result(started) == [1, 2]


async def test_a_signal_timeout_raises(scene: Scene):
    @scene.engine.function("listen")
    async def function(payload: dict[str, Any], ctx: Any) -> Any:
        try:
            return await ctx.wait_for("a", timeout=10)
        except SignalTimeout as error:
            return f"too late: {isinstance(error, TimeoutError)}"

    started = await scene.engine.start_function("listen")
    process = scene.process(warm=COLD)
    await process.quiet()
    scene.clock.advance(10)
    await process.quiet()
    assert await scene.engine.run_result(started) == "too late: True"


# --- versions ---


async def test_runs_are_pinned_and_wait_with_a_reason_until_adopted(scene: Scene):
    async def old(payload: dict[str, Any], ctx: Any) -> Any:
        await ctx.step(done, 1)
        await ctx.sleep(1)
        return f"version {ctx.version}"

    engine = scene.engine
    engine.function("f", version=1)(old)
    started = await engine.start_function("f")
    process = scene.process()
    await process.quiet()
    scene.clock.advance(1)

    async with function_scene() as other:  # a process with version 2 alone
        other.engine.function("f", version=2)(old)
        newer = other.process()
        newer.engine = engine
        newer.runner = Process(engine).runner
        newer.runner._registry = other.engine.kernel.function_registry
        assert await newer.turn() == 0
        reason = await engine.kernel.run_reads.why(started.id)
        assert reason.code == "no_worker"
        assert "functions adopt" in reason.text
        assert "f@1" in reason.text
        run = await engine.kernel.run_services.function_runs.adopt(started.id, 2, actor="ada")
        assert run.state == "running"
        assert await newer.turn() == 1
    assert await engine.run_result(started) == "version 2"
    tasks = await engine.kernel.reads.list_tasks(kind="function")
    transitions = [transition for task in tasks for transition in await engine.kernel.reads.list_transitions(task.id)]
    assert [transition.actor for transition in transitions if transition.transition == "cancel"] == ["ada"]
    with pytest.raises(IllegalTransition):
        await engine.kernel.run_services.function_runs.adopt(started.id, 1)


async def test_new_runs_use_the_newest_version(scene: Scene):
    for version in (1, 3, 2):

        @scene.engine.function("f", version=version)
        async def function(payload: dict[str, Any], ctx: Any) -> Any:
            return ctx.version

    newest = await scene.engine.start_function("f")
    chosen = await scene.engine.start_function("f", version=2)
    await scene.process().quiet()
    assert await scene.engine.run_result(newest) == 3
    assert await scene.engine.run_result(chosen) == 2
    async with function_scene():
        pass
    with raises_code("function_not_found", match="nobody"):
        await scene.engine.start_function("nobody")
    with pytest.raises(InvalidInput, match="version"):
        await scene.engine.start_function("f", version=0)


async def test_a_start_without_local_code_uses_the_newest_stored_version(tmp_path: Path):
    url = f"sqlite:///{tmp_path / 'treadle.db'}"
    async with make_engine(url) as worker, make_engine(url) as client:

        @worker.function("f", version=4)
        async def function(payload: dict[str, Any], ctx: Any) -> Any:
            return ctx.version

        async with worker.worker():
            started = await client.start_function("f")
            assert await client.run_result(started, timeout=BOUND) == 4


@pytest.mark.parametrize("warm", [COLD, WARM])
async def test_patched_is_false_only_in_runs_already_past_that_point(scene: Scene, warm: int):
    patched = False

    @scene.engine.function("f")
    async def function(payload: dict[str, Any], ctx: Any) -> Any:
        out = [await ctx.step(done, "a")]
        if patched and ctx.patched("check"):
            out.append(await ctx.step(done, "check"))
        out.append(await ctx.step(done, "b"))
        await ctx.sleep(1)
        if patched and ctx.patched("check"):
            out.append(await ctx.step(done, "check"))
        return out

    past = await scene.engine.start_function("f")
    await scene.process(warm=COLD).quiet()
    patched = True
    new = await scene.engine.start_function("f")
    process = scene.process(warm=warm)
    await process.quiet()
    scene.clock.advance(1)
    await process.quiet()
    assert await scene.engine.run_result(past) == ["a", "b", "check"]
    assert await scene.engine.run_result(new) == ["a", "check", "b", "check"]


@pytest.mark.parametrize("warm", [COLD, WARM])
async def test_a_deprecated_patch_is_accepted_where_it_is_recorded_and_not_recorded_again(scene: Scene, warm: int):
    deprecated = False

    @scene.engine.function("f")
    async def function(payload: dict[str, Any], ctx: Any) -> Any:
        if deprecated:
            ctx.deprecate_patch("check")
        else:
            assert ctx.patched("check")
        out = [await ctx.step(done, "new")]
        await ctx.sleep(1)
        return [*out, await ctx.step(done, "last")]

    past = await scene.engine.start_function("f")
    await scene.process(warm=COLD).quiet()
    deprecated = True
    new = await scene.engine.start_function("f")
    process = scene.process(warm=warm)
    await process.quiet()
    scene.clock.advance(1)
    await process.quiet()
    assert [await scene.engine.run_result(run) for run in (past, new)] == [["new", "last"]] * 2
    assert ["patch check" in [name for _, name, _ in await scene.steps(run.id)] for run in (past, new)] == [True, False]


# --- changed code ---


async def _changed(scene: Scene, before: Any, after: Any) -> tuple[str, Process]:
    """A run that began with one code and goes on with another."""
    code = before

    @scene.engine.function("changed")
    async def function(payload: dict[str, Any], ctx: Any) -> Any:
        return await code(ctx)

    started = await scene.engine.start_function("changed")
    process = scene.process(warm=COLD)
    await process.quiet()
    code = after
    scene.clock.advance(1)
    await process.quiet()

    def roll_back() -> None:
        nonlocal code
        code = before

    process.roll_back = roll_back  # type: ignore[attr-defined]
    return started.id, process


async def _two_steps(ctx: Any) -> Any:
    await ctx.step(done, 1, name="one")
    await ctx.step(done, 2, name="two")
    await ctx.sleep(1)
    return "done"


async def _other_name(ctx: Any) -> Any:
    await ctx.step(done, 1, name="one")
    await ctx.step(done, 2, name="three")
    await ctx.sleep(1)


async def _other_kind(ctx: Any) -> Any:
    await ctx.step(done, 1, name="one")
    await ctx.sleep(1)


async def _shorter(ctx: Any) -> Any:
    return await ctx.step(done, 1, name="one")


async def _gathered(ctx: Any) -> Any:
    await ctx.step(done, 1, name="one")
    await ctx.gather(ctx.step(done, 2, name="two"))


async def _raising(ctx: Any) -> Any:
    raise ValueError("a typo")


@pytest.mark.parametrize(
    ("after", "said"),
    [
        (_other_name, "nondeterministic at 1: recorded step two, now step three"),
        (_other_kind, "nondeterministic at 1: recorded step two, now sleep sleep"),
        (_shorter, "nondeterministic at 1: recorded step two, now the end of the function"),
        (_gathered, "nondeterministic at 1: recorded step two, now a gather"),
        (_raising, "nondeterministic at 0: recorded step one, now the end of the function"),
    ],
)
async def test_nondeterministic_code_is_detected_and_a_rollback_repairs_the_run(scene: Scene, after: Any, said: str):
    run_id, process = await _changed(scene, _two_steps, after)
    (task,) = await process.live(run_id)
    assert (task.failures, task.owner_id, task.wake_at) == (0, None, scene.clock.now() + 1000)
    reason = await scene.engine.why(task.id)
    assert (reason.code, said in reason.text) == ("nondeterministic", True)
    assert said in (await scene.engine.kernel.run_reads.why(run_id)).text
    scene.clock.advance(1)
    await process.quiet()
    (task,) = await process.live(run_id)
    assert task.wake_at == scene.clock.now() + 2000  # later and later
    process.roll_back()  # type: ignore[attr-defined]
    scene.clock.advance(2)
    await process.quiet()
    assert await scene.engine.run_result(run_id) == "done"
    assert await scene.engine.why(task.id)


# --- misuse ---


@pytest.mark.parametrize("kind", ["async"], indirect=True)
async def test_ctx_is_rejected_inside_steps_and_where_it_has_no_meaning(scene: Scene):
    @scene.engine.function("misuse")
    async def function(payload: dict[str, Any], ctx: Any) -> Any:
        said = []
        try:
            await ctx.step(_awaited, ctx.step(done), name="outer")
        except StepFailed as error:
            said.append(error.error)
        try:
            await ctx.gather(asyncio.Event())
        except InvalidInput as error:
            said.append(str(error))
        try:
            await ctx.gather(ctx.continue_as_new())
        except MisusedContext as error:
            said.append(str(error))
        return said

    started = await scene.engine.start_function("misuse")
    await scene.process().quiet()
    nested, odd, continued = await scene.engine.run_result(started)
    assert "inside the step outer" in nested
    assert "Event" in odd
    assert "gather" in continued


async def _awaited(operation: Any) -> Any:
    return await operation


async def test_the_number_of_steps_is_limited(scene: Scene):
    @scene.engine.function("endless", max_steps=5)
    async def function(payload: dict[str, Any], ctx: Any) -> Any:
        while True:
            await ctx.step(done)

    started = await scene.engine.start_function("endless")
    await scene.process().quiet()
    with pytest.raises(RunFailed, match="continue_as_new"):
        await scene.engine.run_result(started)
    assert len(await scene.steps(started.id)) == 5


def test_functions_are_checked_when_they_are_registered():
    engine = make_engine("memory://")
    with pytest.raises(InvalidInput, match="generator"):
        engine.function("f")(lambda payload: (yield))
    with pytest.raises(InvalidName):
        engine.function("f@1")(done)
    with pytest.raises(InvalidInput, match="version"):
        engine.function("f", version=0)(done)
    engine.function("f")(done)
    with raises_code("handler_exists", match="another version"):
        engine.function("f")(done)


def test_later_positions_are_in_the_same_or_an_enclosing_branch():
    assert is_after("5", "4")
    assert not is_after("4", "4")
    assert not is_after("3", "4")
    assert is_after("4.2.1", "4.2.0")
    assert is_after("5.0.0", "4.2.0")
    assert not is_after("4.1.7", "4.2.0")
    assert not is_after("4.3.7", "4.2.0")
    assert not is_after("4", "4.2.0")
    assert is_after("10", "9.0.0")


@given(st.uuids(version=4), st.integers(0, 10_000))
def test_ids_of_steps_are_derived_from_the_run_and_the_place(run: uuid.UUID, number: int):
    run_id, place = uuid7(number, run.bytes), f"{number}.1.0"
    assert StepIds(run_id).at(place) == step_id(run_id, place)


async def test_now_and_random_are_the_same_in_every_replay(scene: Scene):
    seen: list[tuple[datetime, float]] = []

    @scene.engine.function("values")
    async def function(payload: dict[str, Any], ctx: Any) -> Any:
        seen.append((ctx.now(), ctx.random()))
        for _ in range(3):
            await ctx.sleep(1)
        return [ctx.random(), ctx.random()]

    started = await scene.engine.start_function("values")
    process = scene.process(warm=COLD)
    for _ in range(4):
        await process.quiet()
        scene.clock.advance(1)
    one, two = await scene.engine.run_result(started)
    assert one != two
    assert len(seen) == 4
    assert len(set(seen)) == 1
    assert seen[0][0].tzinfo is UTC
