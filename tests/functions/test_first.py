"""`ctx.first`: the first of several operations wins, for ever; the others are canceled exactly once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.engines import ALL, make_engine, url_of
from tests.functions.driver import LEASE_FOR, Died, Process, Scene, function_scene
from tests.limits import BOUND

from treadle import Engine, StepFailed
from treadle.kernel.queue.engine_tasks import cancel_work
from treadle.kernel.store.queries import TaskFilter
from treadle.model.errors import MisusedContext, TaskFailed
from treadle.model.names import CANCEL

COLD, WARM = 0, 1000


@pytest.fixture
async def scene(kind: str) -> AsyncIterator[Scene]:
    async with function_scene() as opened:
        yield opened


@pytest.fixture(params=ALL)
async def engine(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Engine]:
    async with make_engine(url_of(request.param, request, tmp_path)) as opened:
        yield opened


async def cancel_losers(process: Process) -> int:
    """Execute the tasks that cancel losers, as a worker would; how many there were."""
    kernel = process.engine.kernel
    cancel = partial(cancel_work, kernel.store, kernel.queue.cancel, lambda: kernel.runs.cancel)
    tasks = await process.claim(CANCEL)
    for task in tasks:
        await cancel(await process.engine.kernel.value_store.unpack(task.payload))
        await process.settle(task)
    return len(tasks)


def racing(scene: Scene) -> list[str]:
    """Register `race`: a signal, a timer of 10 s, a task and a child run; and then a step. Return the winners that code saw."""
    seen: list[str] = []

    async def noted(name: str) -> str:
        return name

    @scene.engine.function("sleeper")
    async def sleeper(payload: dict[str, Any], ctx: Any) -> str:
        await ctx.sleep(5 if payload.get("quick") else 1000)
        return "rested"

    @scene.engine.function("race")
    async def race(payload: dict[str, Any], ctx: Any) -> Any:
        child = await ctx.start("sleeper", payload)
        winner = await ctx.first(
            answer=ctx.wait_for("answer"), late=ctx.sleep(10), job=ctx.call("job", {"n": 1}), child=child.result()
        )
        seen.append(winner.name)
        return [winner.name, winner.index, winner.value, await ctx.step(noted, winner.name)]

    return seen


async def live_jobs(scene: Scene) -> list[str]:
    found = await scene.engine.kernel.store.tasks.list_matching(TaskFilter(name="job"), 10)
    return [task.state for task in found]


@pytest.mark.parametrize("warm", [COLD, WARM])
@pytest.mark.parametrize("wins", ["answer", "late", "job", "child"])
async def test_the_first_operation_to_end_wins_and_cancels_the_others(scene: Scene, warm: int, wins: str):
    racing(scene)
    started = await scene.engine.start_function("race", {"quick": wins == "child"})
    process = scene.process(warm=warm)
    await process.quiet()
    expected: Any = None
    if wins == "answer":
        await scene.engine.signal(started, "answer", "yes")
        expected = "yes"
    elif wins == "job":
        await process.quiet(lambda name, payload: {"n": 2})
        expected = {"n": 2}
    else:
        scene.clock.advance(5 if wins == "child" else 10)
        expected = "rested" if wins == "child" else None
    await process.quiet()
    index = ["answer", "late", "job", "child"].index(wins)
    assert await scene.engine.run_result(started, timeout=BOUND) == [wins, index, expected, wins]
    states = {name: state for _, name, state in await scene.steps(started.id) if not name.startswith(("step", "start", "first"))}
    names = dict(zip(["answer", "late", "job", "child"], states, strict=True))
    assert {states[name] for key, name in names.items() if key != wins} == {"canceled"}
    assert states[names[wins]] == "completed"
    assert (await scene.engine.kernel.runs.get_run(started.id)).steps == len(await scene.steps(started.id))
    assert await cancel_losers(process) == 1
    assert await live_jobs(scene) == ["completed" if wins == "job" else "canceled"]
    (child,) = [each.task_id for each in await scene.engine.kernel.functions.recorded(started.id) if each.kind == "start"]
    assert await scene.state(child or "") == ("completed" if wins == "child" else "canceled")
    assert (await scene.engine.kernel.verify()).problems == ()


@pytest.mark.parametrize("warm", [COLD, WARM])
async def test_a_signal_that_a_loser_waited_for_stays_in_the_inbox(scene: Scene, warm: int):
    @scene.engine.function("f")
    async def function(payload: dict[str, Any], ctx: Any) -> Any:
        winner = await ctx.first(ctx.wait_for("a"), ctx.wait_for("b"))
        return [winner.name, winner.index, winner.value, await ctx.wait_for("b")]

    started = await scene.engine.start_function("f")
    process = scene.process(warm=warm)
    await process.quiet()
    await scene.engine.signal(started, "a", 1)
    await scene.engine.signal(started, "b", 2)
    await process.quiet()
    assert await scene.engine.run_result(started, timeout=BOUND) == ["", 0, 1, 2]


async def test_a_winner_that_failed_raises_its_error_in_every_replay(scene: Scene):
    async def broken() -> None:
        raise ValueError("no")

    @scene.engine.function("f")
    async def function(payload: dict[str, Any], ctx: Any) -> Any:
        errors = []
        try:
            await ctx.first(ctx.call("job"), ctx.sleep(10))
        except TaskFailed as error:
            errors.append(error.error)
        try:
            await ctx.first(ctx.step(broken), ctx.sleep(10))
        except StepFailed as error:
            errors.append(str(error))
        await ctx.wait_for("go")
        return errors

    def fail(name: str, payload: dict[str, Any]) -> dict[str, Any]:
        raise ValueError("It broke.")

    started = await scene.engine.start_function("f")
    process = scene.process(warm=COLD)
    await process.quiet(fail)
    await scene.engine.signal(started, "go")
    await process.quiet()
    result = await scene.engine.run_result(started, timeout=BOUND)
    assert result[0] == "It broke."
    assert "no" in result[1]


async def test_a_retry_of_a_failed_winner_repeats_it_alone(scene: Scene):
    @scene.engine.function("f")
    async def function(payload: dict[str, Any], ctx: Any) -> Any:
        winner = await ctx.first(late=ctx.sleep(1000), job=ctx.call("job", {}))
        return [winner.name, winner.value]

    def fail(name: str, payload: dict[str, Any]) -> dict[str, Any]:
        raise ValueError("It broke.")

    started = await scene.engine.start_function("f")
    process = scene.process(warm=COLD)
    await process.quiet(fail)
    assert await scene.state(started.id) == "failed"
    await scene.engine.runs.retry(started.id)
    await process.quiet()
    scene.clock.advance(1000)  # the timer has lost, for good
    await process.quiet(lambda name, payload: {"n": 3})
    assert await scene.engine.run_result(started, timeout=BOUND) == ["job", {"n": 3}]


@pytest.mark.parametrize("warm", [COLD, WARM])
async def test_a_step_that_loses_is_stopped_and_never_executed_again(scene: Scene, warm: int):
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

    async def flaky() -> None:
        raise OSError("not yet")

    @scene.engine.function("f")
    async def function(payload: dict[str, Any], ctx: Any) -> Any:
        winner = await ctx.first(
            slow=ctx.step(slow), flaky=ctx.step(flaky, retry=5), job=ctx.call("job", {}), again=ctx.wait_for("go")
        )
        await ctx.sleep(1)
        return winner.name

    started = await scene.engine.start_function("f")
    process = scene.process(warm=warm)
    turn = asyncio.create_task(process.turn())
    await executing.wait()
    await scene.engine.signal(started, "go")
    async with asyncio.timeout(BOUND):
        while not stopped.is_set():
            scene.clock.advance(1)
            await asyncio.sleep(0)
        await turn
    scene.clock.advance(10)
    await process.quiet()
    assert await scene.engine.run_result(started, timeout=BOUND) == "again"
    assert count == 1
    states = {name: state for _, name, state in await scene.steps(started.id)}
    assert (states["step slow"], states["step flaky"], states["call job"]) == ("canceled", "canceled", "canceled")


async def test_a_step_that_loses_gives_its_slot_back(scene: Scene):
    executing = asyncio.Event()
    keys: list[str | None] = []

    async def slow() -> None:
        executing.set()
        await asyncio.Event().wait()

    async def look(run_id: str) -> None:
        task = await scene.engine.kernel.functions.own_task(run_id)
        keys.append(None if task is None else task.limit_key)

    @scene.engine.function("f")
    async def function(payload: dict[str, Any], ctx: Any) -> Any:
        winner = await ctx.first(slow=ctx.step(slow, limit_key="k"), go=ctx.wait_for("go"))
        await ctx.step(look, ctx.run_id)
        return winner.name

    await scene.engine.kernel.lists.limit_key("k", 1)
    started = await scene.engine.start_function("f")
    process = scene.process()
    await process.turn()  # it waits for its turn
    turn = asyncio.create_task(process.turn())
    await executing.wait()
    await scene.engine.signal(started, "go")
    async with asyncio.timeout(BOUND):
        while not turn.done():
            scene.clock.advance(1)
            await asyncio.sleep(0)
    assert await scene.engine.run_result(started, timeout=BOUND) == "go"
    assert keys == [None]


async def test_a_first_inside_a_gather_and_in_a_loop(scene: Scene):
    @scene.engine.function("f")
    async def function(payload: dict[str, Any], ctx: Any) -> Any:
        async def branch(number: int) -> list[Any]:
            found = []
            for _ in range(2):
                winner = await ctx.first(ctx.wait_for(f"s{number}"), late=ctx.sleep(5), job=ctx.call("job", {}))
                found.append(winner.name or winner.value)
            return found

        found = await ctx.gather(branch(0), branch(1))
        await ctx.wait_for("end")
        return found

    started = await scene.engine.start_function("f")
    process = scene.process(warm=COLD)
    await process.quiet()
    await scene.engine.signal(started, "s1", "one")
    await process.quiet()
    for _ in range(3):
        scene.clock.advance(5)
        await process.quiet()
        await cancel_losers(process)
    await process.quiet()
    assert await scene.engine.kernel.store.records.list_messages(started.id, 100, 0) == []  # the ends of losers do not accumulate
    await scene.engine.signal(started, "end")
    await process.quiet()
    assert await scene.engine.run_result(started, timeout=BOUND) == [["late", "late"], ["one", "late"]]


@pytest.mark.parametrize("kind", ["async"], indirect=True)
@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda ctx: ctx.gather(ctx.sleep(1)), "takes operations of ctx, not coroutine"),
        (lambda ctx: ctx.effect("pay", dict), "An effect cannot lose"),
        (lambda ctx: ctx.start("f"), "ctx.start does not wait"),
        (lambda ctx: 7, "not int"),
    ],
)
async def test_first_rejects_operations_it_cannot_cancel(scene: Scene, make: Any, said: str):
    @scene.engine.function("f")
    async def function(payload: dict[str, Any], ctx: Any) -> Any:
        try:
            await ctx.first(ctx.sleep(1), other=make(ctx))
        except MisusedContext as error:
            return str(error)

    started = await scene.engine.start_function("f")
    await scene.process().quiet()
    assert said in await scene.engine.run_result(started, timeout=BOUND)


async def test_changed_code_is_detected(scene: Scene):
    names = ["answer"]

    @scene.engine.function("f")
    async def function(payload: dict[str, Any], ctx: Any) -> Any:
        await ctx.first(**{names[0]: ctx.wait_for("answer")}, late=ctx.sleep(10))
        await ctx.wait_for("end")

    started = await scene.engine.start_function("f")
    process = scene.process(warm=COLD)
    await process.quiet()
    await scene.engine.signal(started, "answer")
    await process.quiet()
    names[0] = "reply"
    await scene.engine.signal(started, "end")
    await process.turn()
    assert "recorded first first won by answer" in (await scene.engine.kernel.run_reads.why(started.id)).text


EVENTS = st.lists(st.sampled_from(["answer", "job", "time", "die", "turn"]), min_size=1, max_size=6)


@settings(max_examples=15, deadline=None)
@given(events=EVENTS, dies_at=st.integers(1, 4), after=st.booleans(), warm=st.sampled_from([COLD, WARM]))
def test_all_code_that_continues_sees_the_same_winner(events: list[str], dies_at: int, *, after: bool, warm: int):
    """No replay sees another winner than the first execution."""
    asyncio.run(_race(events, dies_at, after=after, warm=warm))


async def _race(events: list[str], dies_at: int, *, after: bool, warm: int) -> None:
    async with function_scene() as scene:
        seen = racing(scene)
        started = await scene.engine.start_function("race")
        process = scene.process(warm=warm)
        await process.turn()
        for event in [*events, "time", "turn", "turn"]:
            if event == "answer" and not (await scene.engine.kernel.runs.get_run(started.id)).finished:
                await scene.engine.signal(started, "answer", "yes")
            elif event == "die":
                process.die()
                process = scene.process(dies_at=dies_at, after=after, warm=warm)
            elif event == "time":
                scene.clock.advance(10)
            else:
                try:
                    await process.turn((lambda name, payload: {"n": 2}) if event == "job" else None)
                except Died:
                    process.die()
                    process = scene.process(warm=warm)
                    scene.clock.advance(LEASE_FOR / 1000)
        for _ in range(5):
            await process.quiet()
            scene.clock.advance(LEASE_FOR / 1000)
        result = await scene.engine.run_result(started, timeout=BOUND)
        assert set(seen) == {result[0]}
        assert await cancel_losers(process) == 1
        assert await live_jobs(scene) in (["completed"], ["canceled"])
        assert (await scene.engine.kernel.verify()).problems == ()


@pytest.mark.postgres
async def test_workers_cancel_the_losers(engine: Engine):
    held = asyncio.Event()

    @engine.handler("job")
    async def job(payload: dict[str, Any], ctx: Any) -> dict[str, Any]:
        held.set()
        await asyncio.Event().wait()
        return {}

    @engine.function("f")
    async def function(payload: dict[str, Any], ctx: Any) -> Any:
        winner = await ctx.first(
            answer=ctx.wait_for("answer"), job=ctx.call("job", {}), late=ctx.sleep(3600), ask=ctx.approval("May I?")
        )
        return [winner.name, winner.value]

    async with engine.worker():
        started = await engine.start_function("f")
        await asyncio.wait_for(held.wait(), BOUND)
        await engine.signal(started, "answer", {"ok": True})
        assert await engine.run_result(started, timeout=BOUND) == ["answer", {"ok": True}]
        (task,) = await engine.kernel.store.tasks.list_matching(TaskFilter(name="job"), 10)
        with pytest.raises(Exception, match="answer was first"):
            await engine.result(task.id, timeout=BOUND)
    assert [each.state for each in (await engine.approvals.list(state=("canceled",))).approvals] == ["canceled"]
