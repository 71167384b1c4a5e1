"""Operators and callers of runs of functions: signals with a start, bulk signals, reopening, and queries that wait."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.engines import ALL, make_engine, url_of
from tests.errors import raises_code
from tests.functions.driver import Process
from tests.limits import BOUND

from treadle import Canceled, Engine, Limit
from treadle.kernel.store.queries import TaskFilter
from treadle.model.errors import IllegalTransition, InvalidInput, Refused

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


EXECUTED: list[str] = []


async def note(name: str) -> str:
    EXECUTED.append(name)
    return name


def define(engine: Engine) -> None:
    EXECUTED.clear()

    @engine.function("collect")
    async def collect(payload: dict[str, Any], ctx: Any) -> Any:
        values = []
        while len(values) < payload.get("count", 1):
            values.append(await ctx.wait_for("change"))
        return values

    @engine.function("work")
    async def work(payload: dict[str, Any], ctx: Any) -> Any:
        first = await ctx.step(note, "first")
        child = await ctx.start("collect")
        results = await ctx.gather(ctx.call("pack", {"n": 1}), ctx.call("pack", {"n": 2}), child.result(), ctx.wait_for("go"))
        return [first, await ctx.step(note, "last"), *results]

    @engine.function("tidy")
    async def tidy(payload: dict[str, Any], ctx: Any) -> Any:
        try:
            await ctx.wait_for("go")
        except Canceled:
            await ctx.step(note, "undone")
            raise

    @engine.function("report")
    async def report(payload: dict[str, Any], ctx: Any) -> Any:
        await ctx.wait_for("go")
        ctx.publish("state", "done")
        await ctx.wait_for("end")


# --- signals with a start ---


async def test_a_signal_reaches_the_run_that_its_start_creates_or_meets(engine: Engine, process: Process):
    options: Any = {"unique_key": "k", "signal": "change"}
    first = await engine.start("collect", {"count": 3}, signal_payload={"n": 1}, **options)
    second = await engine.start("collect", {"count": 3}, signal_payload={"n": 2}, **options)
    assert second.id == first.id
    await process.quiet()
    await engine.start("collect", signal_payload={"n": 3}, actor="ada", **options)
    await process.quiet()
    assert await first.result(timeout=BOUND) == [{"n": 1}, {"n": 2}, {"n": 3}]
    third = await engine.start("collect", signal_payload={"n": 4}, **options)
    await process.quiet()
    assert await third.result(timeout=BOUND) == [{"n": 4}]


async def test_the_signal_of_a_rejected_start_is_not_sent(engine: Engine, process: Process):
    first = await engine.start("collect", unique_key="k")
    with raises_code("unique_key_taken"):
        await engine.start("collect", unique_key="k", on_conflict="reject", signal="change")
    await process.quiet()
    assert not (await engine.kernel.runs.get_run(first.id)).finished


async def test_a_signal_does_not_start_a_delayed_run(engine: Engine, process: Process):
    run = await engine.start("collect", delay=DAY, signal="change")
    await run.signal("change", {"n": 2})
    assert await process.turn() == 0
    await engine.runs.reschedule(run.id)
    await process.quiet()
    assert await run.result(timeout=BOUND) == [None]


async def test_an_idempotency_key_signals_the_first_run(engine: Engine, process: Process):
    options: Any = {"idempotency_key": "k", "signal": "change"}
    runs = [await engine.start("collect", {"count": 2}, signal_payload=number, **options) for number in (1, 2)]
    await process.quiet()
    assert await runs[0].result(timeout=BOUND) == [1, 2]
    with pytest.raises(IllegalTransition):
        await engine.start("collect", {"count": 2}, **options)


# --- bulk signals ---


async def test_a_bulk_signal_reaches_the_matching_live_runs(engine: Engine, process: Process):
    runs = [await engine.start("collect", tags={"n": number % 2}) for number in range(4)]
    await engine.runs.cancel(runs[0].id)
    api = engine.kernel.run_services.run_operations
    preview = await api.bulk("signal", signal="change", where="tag.n = 0", dry_run=True)
    assert (preview.matched, preview.done) == (1, [])
    result = await api.bulk("signal", signal="change", payload={"by": "Ada"}, workflow="collect")
    assert sorted(result.done) == sorted(run.id for run in runs[1:])
    await process.quiet()
    assert await runs[1].result(timeout=BOUND) == [{"by": "Ada"}]
    for action, signal in (("signal", None), ("pause", "change")):
        with pytest.raises(InvalidInput):
            await api.bulk(action, signal=signal)  # type: ignore[arg-type]


# --- reopening ---


async def pack(process: Process, number: int) -> None:
    """Complete the task of the call with that number."""
    for task in await process.claim("handler"):
        payload = await process.engine.kernel.value_store.unpack(task.payload)
        if payload["n"] == number:
            await process.settle(task, {"packed": number})


async def test_a_reopened_run_goes_on_after_its_last_recorded_step(engine: Engine, process: Process):
    run = await engine.start("work", unique_key="k", deadline=DAY)
    await process.quiet()
    await pack(process, 1)
    await run.signal("go", "early")
    await process.quiet()
    before = await engine.runs.cancel(run.id, actor="eve")
    assert before.state == "canceled"
    with pytest.raises(IllegalTransition):
        await run.signal("go")
    again = await engine.runs.reopen(run.id, actor="ada")
    assert (again.state, again.finished_at, again.deadline_at) == ("running", None, None)
    assert (await engine.start("work", unique_key="k")).id == run.id
    await process.quiet()
    await pack(process, 2)
    child_ids = await engine.kernel.store.runs.list_children(run.id)
    children = [child for child in await engine.kernel.store.runs.find_many(child_ids) if not child.finished]
    assert len(children) == 1
    await engine.signal(children[0].id, "change", "late")
    await process.quiet()
    assert await run.result(timeout=BOUND) == ["first", "last", {"packed": 1}, {"packed": 2}, ["late"], "early"]
    assert EXECUTED == ["first", "last"]
    moves = [(move.transition, move.actor) for move in await engine.kernel.store.log.list_transitions(run.id)]
    assert ("reopen", "ada") in moves
    packs = await engine.kernel.store.tasks.list_matching(TaskFilter(name="pack"), 10)
    assert sorted(task.state for task in packs) == ["canceled", "completed", "completed"]
    assert (await engine.kernel.verify()).problems == ()


async def test_a_run_that_never_began_is_reopened(engine: Engine, process: Process):
    run = await engine.start("collect", delay=DAY)
    await engine.runs.cancel(run.id)
    await engine.runs.reopen(run.id)
    await run.signal("change", 1)
    await process.quiet()
    assert await run.result(timeout=BOUND) == [1]


async def test_a_run_that_has_cleaned_up_is_not_reopened(engine: Engine, process: Process):
    run = await engine.start("tidy")
    await process.quiet()
    await engine.runs.cancel(run.id)
    with pytest.raises(IllegalTransition):
        await engine.runs.reopen(run.id)  # it still cleans up
    await process.quiet()
    assert EXECUTED == ["undone"]
    with pytest.raises(Refused, match="treadle runs rerun"):
        await engine.runs.reopen(run.id)


async def test_only_a_canceled_run_is_reopened(engine: Engine, process: Process):
    run = await engine.start("collect", signal="change")
    await process.quiet()
    with pytest.raises(IllegalTransition):
        await engine.runs.reopen(run.id)


async def test_canceled_runs_are_reopened_in_bulk(engine: Engine, process: Process):
    runs = [await engine.start("collect") for _ in range(3)]
    for run in runs:
        await engine.runs.cancel(run.id)
    result = await engine.kernel.run_services.run_operations.bulk("reopen", workflow="collect", actor="ada")
    assert sorted(result.done) == sorted(run.id for run in runs)
    assert {(await engine.kernel.runs.get_run(run.id)).state for run in runs} == {"running"}


# --- queries that wait ---


async def test_a_query_waits_for_the_first_value(engine: Engine, process: Process):
    run = await engine.start("report")
    waiting = asyncio.create_task(run.query("state", wait=BOUND))
    await process.quiet()
    with raises_code("nothing_published"):
        await run.query("state")
    await run.signal("go")
    await process.quiet()
    assert await waiting == "done"
    assert await engine.kernel.runs.query(run.id, "state", wait=BOUND) == "done"
    api = engine.kernel.run_services.run_operations
    assert (await api.query(run.id, "state", wait_for=5.0)).value == "done"


async def test_a_query_does_not_wait_for_a_run_that_has_ended(engine: Engine):
    run = await engine.start("report")
    await engine.runs.cancel(run.id)
    with raises_code("nothing_published"):
        await run.query("state", wait=BOUND)


async def test_a_query_gives_up_after_its_time(engine: Engine):
    run = await engine.start("report")
    with raises_code("nothing_published"):
        await run.query("state", wait=0.05)


# --- limits of live runs ---


@pytest.mark.parametrize("options", [{"limit": 2}, {"limit": 2, "limit_key": "customer"}])
async def test_further_runs_wait_until_a_live_one_ends(engine: Engine, process: Process, options: dict[str, Any]):
    runs = [await engine.start("collect", **options) for _ in range(4)]
    await process.quiet()
    tasks = [await engine.kernel.functions.own_task(run.id) for run in runs]
    assert [task.activity for task in tasks if task is not None] == ["waiting_for_signal"] * 2 + [None] * 2
    reason = await engine.kernel.run_reads.why(runs[2].id)
    assert f"the limit of 2 on run:{options.get('limit_key', 'collect')}" in reason.text
    for run in runs:
        await run.signal("change")  # a waiting run does not start because of it
    assert await process.turn() == 2  # the slots stay with the live runs until these end
    await process.quiet()
    assert [await run.result(timeout=BOUND) for run in runs] == [[None]] * 4


async def test_a_canceled_or_replaced_run_gives_its_slot_back(engine: Engine, process: Process):
    options: Any = {"limit": 1, "unique_key": "k"}
    first = await engine.start("tidy", **options)
    other = await engine.start("tidy", limit=1)
    await process.quiet()
    await engine.runs.cancel(first.id)
    await process.quiet()
    task = await engine.kernel.functions.own_task(other.id)
    assert task is not None
    assert task.activity == "waiting_for_signal"
    assert (await engine.kernel.verify()).problems == ()


async def live_runs(engine: Engine, runs: list[Any]) -> list[int]:
    """The positions of the runs that have begun and not ended."""
    tasks = [await engine.kernel.functions.own_task(run.id) for run in runs]
    return [number for number, task in enumerate(tasks) if task is not None and task.claim_version and not task.finished]


async def test_runs_count_under_the_limits_of_their_function_from_every_start(engine: Engine, process: Process):
    @engine.function("sync", limits=[Limit("syncs", max=3), Limit("customer", by="customer", max=1)])
    async def sync(payload: dict[str, Any], ctx: Any) -> Any:
        value = await ctx.wait_for("change")
        return value if payload["customer"] != "eve" else await ctx.continue_as_new({"customer": "ida"})

    @engine.function("parent")
    async def parent(payload: dict[str, Any], ctx: Any) -> Any:
        return (await ctx.start("sync", {"customer": "ada"})).id

    await engine.kernel.trigger_services.declarations.sync(engine.declare)
    runs = [await engine.start("sync", {"customer": name}) for name in ("ada", "ada", "bob", "eve", "dan")]
    outer = await engine.start("parent")
    await process.quiet()
    runs.append(engine.handle(await outer.result(timeout=BOUND)))
    await process.quiet()
    assert await live_runs(engine, runs) == [0, 2, 3]
    limits = (await engine.kernel.lists.limits()).limits
    assert [limit.key for limit in limits if limit.program] == ["run:syncs"]
    reason = await engine.kernel.run_reads.why(runs[4].id)
    assert "the limit of 3 on run:syncs" in reason.text
    await runs[0].signal("change")
    await process.quiet()
    assert await live_runs(engine, runs) == [1, 2, 3]
    await runs[2].cancel()
    await process.quiet()
    assert await live_runs(engine, runs) == [1, 3, 4]
    await runs[3].signal("change")  # the run that continues it keeps the slots
    await process.quiet()
    assert await live_runs(engine, runs) == [1, 4]
    other = await engine.start("sync", {"customer": "dan"}, limit=1)
    await process.quiet()
    assert await live_runs(engine, [*runs, other]) == [1, 4, 6]  # only the limit of its start counts


async def test_a_rate_of_runs_is_refused(engine: Engine):
    with raises_code("invalid_policy", "live runs"):
        engine.function("paced", limits=[Limit("paced", rate=1)])(note)


async def test_a_step_with_a_limit_key_is_refused_in_a_run_with_one(engine: Engine, process: Process):
    @engine.function("both")
    async def both(payload: dict[str, Any], ctx: Any) -> Any:
        await ctx.step(note, "x", limit_key="api")

    run = await engine.start("both", limit=1)
    await process.quiet()
    with raises_code("run_failed", "ctx.call"):
        await run.result(timeout=BOUND)
