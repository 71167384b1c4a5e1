"""Unique keys of runs: one live run per key, what a second start does, delayed starts, and debouncing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.engines import ALL, SHARED, make_engine, url_of
from tests.errors import raises_code
from tests.functions.driver import Process
from tests.limits import BOUND

from treadle import Canceled, Engine
from treadle.model.errors import InvalidInput, RunCanceled
from treadle.model.runs import Run

DAY = 86_400


@pytest.fixture(params=ALL)
async def engine(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Engine]:
    async with make_engine(url_of(request.param, request, tmp_path)) as opened:
        define(opened)
        yield opened


@pytest.fixture
async def process(engine: Engine) -> AsyncIterator[Process]:
    made = Process(engine)
    yield made
    made.die()


def define(engine: Engine) -> None:
    @engine.function("wait")
    async def wait(payload: dict[str, Any], ctx: Any) -> Any:
        return payload | {"signal": await ctx.wait_for("go")}

    @engine.function("tidy")
    async def tidy(payload: dict[str, Any], ctx: Any) -> Any:
        try:
            await ctx.wait_for("go")
        except Canceled:
            await ctx.step(asyncio.sleep, 0)
            raise

    @engine.function("again")
    async def again(payload: dict[str, Any], ctx: Any) -> Any:
        await ctx.wait_for("go")
        await ctx.continue_as_new(payload)


async def live_runs(engine: Engine, name: str = "wait") -> list[Run]:
    return [run for run in await engine.kernel.run_reads.list_runs(workflow=name) if not run.finished]


async def starts_for(engine: Engine, run_id: str) -> float:
    """The seconds until the start of a run."""
    task = await engine.kernel.functions.own_task(run_id)
    assert task is not None
    return 0 if task.wake_at is None else (task.wake_at - await engine.kernel.store.now()) / 1000


# --- one live run ---


async def test_a_second_start_returns_the_live_run(engine: Engine, process: Process):
    first = await engine.start("wait", {"n": 1}, unique_key="k")
    second = await engine.start("wait", {"n": 2}, unique_key="k")
    other = await engine.start("wait", {"n": 3}, unique_key="other")
    assert (second.id, second.created, other.created) == (first.id, False, True)
    await process.quiet()
    assert (await engine.start("wait", unique_key="k")).id == first.id  # also while it waits


async def test_a_new_run_starts_after_the_end_of_the_live_one(engine: Engine, process: Process):
    first = await engine.start("wait", unique_key="k")
    await first.signal("go")
    await process.quiet()
    second = await engine.start("wait", unique_key="k")
    assert second.created
    await engine.runs.cancel(second.id)
    assert (await engine.start("wait", unique_key="k")).created


async def test_a_rejected_start_stores_no_run(engine: Engine):
    first = await engine.start("wait", unique_key="k")
    with raises_code("unique_key_taken", first.id):
        await engine.start("wait", unique_key="k", on_conflict="reject", deadline=60, tags={"a": 1})
    assert [run.id for run in await live_runs(engine)] == [first.id]


@pytest.mark.parametrize("action", ["return", "reject", "replace", "debounce"])
async def test_the_key_of_another_function_is_refused(engine: Engine, action: Any):
    first = await engine.start("tidy", unique_key="k")
    with raises_code("unique_key_taken"):
        await engine.start("wait", unique_key="k", on_conflict=action, delay=DAY)
    assert not (await engine.kernel.runs.get_run(first.id)).finished


async def test_a_replaced_run_is_canceled_in_the_commit_that_starts_the_next_one(engine: Engine, process: Process):
    first = await engine.start("wait", {"n": 1}, unique_key="k")
    await process.quiet()
    second = await engine.start("wait", {"n": 2}, unique_key="k", on_conflict="replace", actor="ada")
    assert second.created
    assert [run.id for run in await live_runs(engine)] == [second.id]
    with pytest.raises(RunCanceled, match=f"The run {second.id} replaces it"):
        await first.result(timeout=BOUND)
    ends = [move for move in await engine.kernel.store.log.list_transitions(first.id) if move.transition == "cancel"]
    assert [move.actor for move in ends] == ["ada"]
    assert (await engine.start("wait", unique_key="k")).id == second.id


async def test_a_replaced_run_cleans_up_beside_the_next_one(engine: Engine, process: Process):
    first = await engine.start("tidy", unique_key="k")
    await process.quiet()
    second = await engine.start("tidy", unique_key="k", on_conflict="replace")
    assert not (await engine.kernel.runs.get_run(first.id)).finished
    third = await engine.start("tidy", unique_key="k", on_conflict="replace")
    assert (second.created, third.created) == (True, True)
    await process.quiet()
    states = [(await engine.kernel.runs.get_run(handle.id)).state for handle in (first, second, third)]
    assert states == ["canceled", "canceled", "running"]
    assert (await engine.start("tidy", unique_key="k")).id == third.id


async def test_a_run_that_ends_while_it_is_replaced_frees_its_key(
    engine: Engine, process: Process, monkeypatch: pytest.MonkeyPatch
):
    first = await engine.start("wait", unique_key="k")
    find, reads = engine.kernel.store.runs.find, []

    async def find_before_the_end(run_id: str) -> Run | None:
        run = await find(run_id)
        if run_id == first.id and not reads:
            reads.append(run_id)
            await first.signal("go")
            await process.quiet()
        return run

    monkeypatch.setattr(engine.kernel.store.runs, "find", find_before_the_end)
    assert (await engine.start("wait", unique_key="k", on_conflict="replace")).created
    assert (await engine.kernel.runs.get_run(first.id)).state == "completed"


async def test_a_run_that_cleans_up_for_an_operator_can_be_replaced(engine: Engine, process: Process):
    first = await engine.start("tidy", unique_key="k")
    await process.quiet()
    await engine.runs.cancel(first.id)
    assert (await engine.start("tidy", unique_key="k")).id == first.id
    assert (await engine.start("tidy", unique_key="k", on_conflict="replace")).created


async def test_the_key_stays_with_the_chain_and_with_another_version(engine: Engine, process: Process):
    first = await engine.start("again", unique_key="k")
    await first.signal("go")
    await process.quiet()
    (current,) = await live_runs(engine, "again")
    assert current.id != first.id
    assert (await engine.start("again", unique_key="k")).id == current.id
    await engine.kernel.run_services.function_runs.adopt(current.id, 2)
    assert (await engine.start("again", unique_key="k")).id == current.id


async def test_a_chain_continues_without_a_key_that_it_has_lost(engine: Engine, process: Process):
    first = await engine.start("again", {"n": 1}, unique_key="k")
    await process.quiet()
    second = await engine.start("again", {"n": 2}, unique_key="k", on_conflict="debounce", delay=DAY)
    assert second.created  # the first one executes
    await first.signal("go")
    await process.quiet()
    assert len(await live_runs(engine, "again")) == 2
    assert (await engine.start("again", unique_key="k")).id == second.id


async def test_a_retried_run_has_its_key_again_unless_it_is_taken(engine: Engine, process: Process):
    @engine.function("broken")
    async def broken(payload: dict[str, Any], ctx: Any) -> Any:
        raise ValueError("broken")

    first = await engine.start("broken", unique_key="k")
    await process.quiet()
    await engine.runs.retry(first.id)
    assert (await engine.start("broken", unique_key="k")).id == first.id
    await process.quiet()
    second = await engine.start("broken", unique_key="k", delay=DAY)
    assert second.created
    await engine.runs.retry(first.id)
    assert (await engine.start("broken", unique_key="k")).id == second.id


@pytest.mark.parametrize(
    "options",
    [
        {"on_conflict": "reject"},
        {"unique_key": "k", "on_conflict": "other"},
        {"unique_key": "k", "on_conflict": "debounce"},
        {"unique_key": "k", "max_wait": 5},
        {"unique_key": "k", "idempotency_key": "k"},
        {"delay": 5, "start_at": "2030-01-01T00:00:00Z"},
    ],
)
async def test_options_that_do_not_belong_together_are_refused(options: dict[str, Any]):
    async with make_engine("memory://") as engine:
        define(engine)
        with pytest.raises(InvalidInput):
            await engine.start("wait", **options)
        assert not await live_runs(engine)


# --- races ---


@pytest.mark.parametrize("kind", SHARED)
@pytest.mark.parametrize("action", ["return", "reject", "replace", "debounce"])
async def test_concurrent_starts_with_one_key_leave_one_live_run(
    kind: str, action: Any, request: pytest.FixtureRequest, tmp_path: Path
):
    url = url_of(kind, request, tmp_path)
    async with make_engine(url) as one, make_engine(url) as other:
        for engine in (one, other):
            define(engine)

        async def start(engine: Engine, number: int) -> str | None:
            with suppress(Exception if action == "reject" else InvalidInput):
                return (await engine.start("wait", {"n": number}, unique_key="k", on_conflict=action, delay=DAY)).id
            return None

        started = await asyncio.gather(*(start(engine, number) for number in range(10) for engine in (one, other)))
        (live,) = await live_runs(one)
        distinct = {run_id for run_id in started if run_id is not None}
        assert live.id in distinct
        assert len(distinct) == (20 if action == "replace" else 1)
        assert started.count(None) == (19 if action == "reject" else 0)


# --- delayed starts ---


async def test_a_delayed_run_starts_later_and_can_be_rescheduled(engine: Engine, process: Process):
    run = await engine.start("wait", delay=DAY, deadline=60)
    assert await process.turn() == 0
    assert DAY - 60 < await starts_for(engine, run.id) <= DAY
    stored = await engine.kernel.runs.get_run(run.id)
    assert stored.deadline_at is not None
    assert stored.deadline_at - stored.created_at >= (DAY + 50) * 1000
    await engine.kernel.functions.reschedule(run.id, delay=2 * DAY, actor="ada")
    assert await starts_for(engine, run.id) > DAY
    reason = await engine.kernel.run_reads.why(run.id)
    assert (reason.code, "not due before" in reason.text) == ("delayed", True)
    await engine.kernel.functions.reschedule(run.id)
    assert await process.turn() == 1
    task = await engine.kernel.functions.own_task(run.id)
    assert task is not None
    moves = [(move.transition, move.actor) for move in await engine.kernel.store.log.list_transitions(task.id)]
    assert moves[:2] == [("reschedule", "ada"), ("reschedule", "operator")]
    with raises_code("already_started"):
        await engine.kernel.functions.reschedule(run.id, delay=DAY)


async def test_a_paused_run_that_is_rescheduled_stays_paused(engine: Engine, process: Process):
    run = await engine.start("wait", delay=DAY)
    await engine.runs.pause(run.id)
    await engine.kernel.functions.reschedule(run.id)
    assert await process.turn() == 0
    await engine.runs.resume(run.id)
    assert await process.turn() == 1


async def test_a_finished_run_cannot_be_rescheduled(engine: Engine):
    run = await engine.start("wait", delay=DAY)
    await engine.runs.cancel(run.id)
    with raises_code("illegal_transition"):
        await engine.kernel.functions.reschedule(run.id)


# --- debouncing ---


async def test_the_last_payload_wins_and_each_call_delays_the_start(engine: Engine, process: Process):
    big = "x" * 20_000
    first = await engine.start("wait", {"n": 1}, unique_key="k", on_conflict="debounce", delay=60)
    for number in (2, 3):
        again = await engine.start("wait", {"n": number, "big": big}, unique_key="k", on_conflict="debounce", delay=DAY)
        assert (again.id, again.created) == (first.id, False)
    assert await starts_for(engine, first.id) > 60
    await engine.kernel.functions.reschedule(first.id)
    await first.signal("go")
    await process.quiet()
    assert await first.result(timeout=BOUND) == {"n": 3, "big": big, "signal": None}
    assert (await engine.kernel.runs.inputs(await engine.kernel.runs.get_run(first.id)))["n"] == 3


async def test_the_maximum_wait_counts_from_the_first_call(engine: Engine):
    first = await engine.start("wait", unique_key="k", on_conflict="debounce", delay=60, max_wait=100)
    await engine.start("wait", unique_key="k", on_conflict="debounce", delay=DAY, max_wait=100)
    assert 0 < await starts_for(engine, first.id) <= 100


async def test_a_call_during_the_execution_starts_another_run(engine: Engine, process: Process):
    first = await engine.start("wait", {"n": 1}, unique_key="k", on_conflict="debounce", delay=DAY)
    await engine.kernel.functions.reschedule(first.id)
    await process.quiet()
    second = await engine.start("wait", {"n": 2}, unique_key="k", on_conflict="debounce", delay=DAY)
    third = await engine.start("wait", {"n": 3}, unique_key="k", on_conflict="debounce", delay=DAY)
    assert (second.created, third.created, second.id == third.id) == (True, False, True)
    assert len(await live_runs(engine)) == 2
