"""Tags that handlers and functions set are stored with their work, and schedules pass theirs to what they start."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from tests.engines import make_engine
from tests.limits import BOUND

from treadle import ApprovalRequest, AwaitingApproval, Engine, Failed, NonRetryable, Paused, Problem, Retry, Succeeded, Waiting
from treadle.kernel.store.queries import TaskFilter
from treadle.model.errors import RunFailed, TaskFailed
from treadle.model.outcomes import Released
from treadle.model.tags import decode_tags


async def tags_of(engine: Engine, record_id: str) -> dict[str, Any]:
    return dict(decode_tags((await engine.kernel.store.search.list_tags([record_id])).get(record_id, {})))


async def test_a_handler_and_a_function_set_tags_that_are_found() -> None:
    async with make_engine("memory://") as engine:
        seen: list[str] = []

        @engine.handler("charge")
        async def charge(payload: dict[str, Any], ctx: Any) -> dict[str, Any]:
            ctx.tag(customer="acme", amount=payload["amount"])
            ctx.tag({"amount": payload["amount"] + 1})
            if payload["amount"] < 0:
                raise NonRetryable("negative amount")
            return {}

        @engine.function("order")
        async def order(payload: dict[str, Any], ctx: Any) -> str:
            ctx.tag(stage="new")
            await ctx.step(lambda: seen.append("stepped"))
            await ctx.wait_for("go")
            ctx.tag(stage="paid", at=datetime(2026, 11, 1, tzinfo=UTC))
            await ctx.call("charge", {"amount": 5})
            return "done"

        async with engine.worker():
            task = await engine.enqueue("charge", {"amount": 1}, tags={"customer": "b", "kept": True})
            await engine.result(task, timeout=BOUND)
            assert await tags_of(engine, task.id) == {"customer": "acme", "amount": 2, "kept": True}
            bad = await engine.enqueue("charge", {"amount": -5})
            with pytest.raises(TaskFailed):
                await engine.result(bad, timeout=BOUND)
            assert (await tags_of(engine, bad.id))["amount"] == -4
            run = await engine.start_function("order", {}, tags={"customer": "c"})
            await engine.signal(run, "go")
            assert await engine.run_result(run, timeout=BOUND) == "done"
            expected = {"customer": "acme", "stage": "paid", "at": "2026-11-01T00:00:00.000Z", "amount": 6}
            assert await tags_of(engine, run.id) == expected
            found = await engine.kernel.search.list_runs("tag.stage = paid and tag.at <= 2026-11-01")
            assert [each.id for each in found.records] == [run.id]
        assert seen == ["stepped"]


async def test_an_invalid_tag_fails_the_work_with_its_reason() -> None:
    async with make_engine("memory://") as engine:

        @engine.function("order")
        async def order(payload: dict[str, Any], ctx: Any) -> None:
            ctx.tag({"no spaces": 1})

        async with engine.worker():
            with pytest.raises(RunFailed, match="cannot be the key of a tag"):
                await engine.run_result(await engine.start_function("order"), timeout=BOUND)


async def test_a_schedule_tags_its_tasks_and_a_backfill_is_listed_by_creation() -> None:
    async with make_engine("memory://") as engine:
        await engine.schedules.create("nightly", cron="0 3 * * *", task="report", tags={"source": "nightly"})
        first = await engine.enqueue("report")
        created_at = (await engine.kernel.reads.get_task(first)).created_at
        while await engine.kernel.store.now() == created_at:
            pass  # tasks of the same millisecond are listed by their ids
        started = await engine.schedules.backfill("nightly", datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 3, tzinfo=UTC))
        assert {len(await tags_of(engine, each.id)) for each in started.started} == {1}
        listed = [task.id for task in await engine.kernel.reads.list_tasks(kind="handler")]
        assert listed[-1] == first.id
        assert len(listed) == 1 + len(started.started)


async def test_a_run_that_repeats_or_continues_another_has_all_its_tags() -> None:
    tags = {f"k{number}": number for number in range(60)}
    async with make_engine("memory://") as engine:
        seen: list[str] = []

        @engine.function("order")
        async def order(payload: dict[str, Any], ctx: Any) -> str:
            if payload.get("again"):
                return str(ctx.run_id)
            for first in range(0, 60, 20):
                ctx.tag({f"k{number}": number for number in range(first, first + 20)})
            await ctx.step(lambda: seen.append("stepped"))
            ctx.tag(k0=100, late=True)
            await ctx.continue_as_new({"again": True})
            return ""

        @engine.handler("imports.Import")
        async def import_row(payload: dict[str, Any], ctx: Any) -> dict[str, Any]:
            for first in range(0, 60, 20):
                ctx.tag({f"k{number}": number for number in range(first, first + 20)})
            return {"id": payload["row"]}

        async with engine.worker():
            run = await engine.start_function("order", {})
            last = await engine.run_result(run, timeout=BOUND)
            expected = {**tags, "k0": 100, "late": True}
            assert (await tags_of(engine, run.id), await tags_of(engine, last)) == (expected, expected)
            flow = await engine.start_run([("imports.afl", ROWS)], "imports.Nightly", {"rows": [1]})
            await engine.run_result(flow, timeout=BOUND)
            (task,) = await engine.kernel.store.tasks.list_matching(TaskFilter(name="imports.Import"), 10)
            for repeated in (await engine.runs.rerun(flow.id), await engine.runs.fork(flow.id, task.step_id or "")):
                assert await tags_of(engine, repeated.id) == tags
            (step,) = [each for each in await engine.kernel.functions.recorded(run.id) if each.kind == "step"]
            for again in (await engine.runs.rerun(run.id), await engine.runs.fork(run.id, step.id)):
                assert await tags_of(engine, again.id) == expected


async def forever(_: Any) -> None:
    await asyncio.Event().wait()


def raising(_: Any) -> None:
    raise NonRetryable("no")


ENDS: dict[str, tuple[Callable[[Any], Any], dict[str, Any]]] = {
    "succeeded": (lambda _: Succeeded({"a": 1}), {}),
    "raised": (raising, {}),
    "failed": (lambda _: Failed(Problem("no", "no")), {}),
    "dead after its last attempt": (lambda _: Retry(Problem("no", "no")), {}),
    "waits for a retry": (lambda _: Retry(Problem("no", "no"), 3_600_000), {"retry": 3}),
    "waits": (lambda _: Waiting(3_600_000), {}),
    "asks": (lambda _: AwaitingApproval(ApprovalRequest("Pay?")), {}),
    "pauses": (lambda _: Paused("look"), {}),
    "released by itself": (lambda ctx: Released() if ctx.attempt < 2 else {}, {}),
    "released by its worker": (forever, {}),
    "took too long": (forever, {"timeout": 0.05}),
    "returns what cannot be stored": (lambda _: {"a": object()}, {}),
    "returns what is too large": (lambda _: {"a": "x" * 2_000_000}, {}),
    "returns no outcome": (lambda _: 5, {}),
}


@pytest.mark.parametrize("end", ENDS)
async def test_tags_are_stored_however_the_attempt_ends(end: str) -> None:
    ending, options = ENDS[end]
    async with make_engine("memory://") as engine:
        called = asyncio.Event()

        @engine.handler("work", **options)
        async def work(payload: dict[str, Any], ctx: Any) -> Any:
            ctx.tag(customer="acme")
            called.set()
            outcome = ending(ctx)
            return await outcome if asyncio.iscoroutine(outcome) else outcome

        task = await engine.enqueue("work")
        async with engine.worker(grace=0 if end == "released by its worker" else BOUND):
            await asyncio.wait_for(called.wait(), BOUND)
        assert await tags_of(engine, task.id) == {"customer": "acme"}


def killed(payload: dict[str, Any], ctx: Any) -> None:
    ctx.tag(customer="acme")
    os.kill(os.getpid(), signal.SIGKILL)


async def test_tags_are_stored_if_the_process_of_the_handler_dies() -> None:
    async with make_engine("memory://") as engine:
        engine.handler("work", isolation="process")(killed)
        async with engine.worker():
            task = await engine.enqueue("work")
            with pytest.raises(TaskFailed):
                await engine.result(task, timeout=BOUND)
        assert await tags_of(engine, task.id) == {"customer": "acme"}


ROWS = """
namespace imports {
    event facet Import(row: Long) => (id: Long)
    facet All(rows: [Long]) => (ids: [Long] = []) andThen foreach row in $.rows {
        one = Import(row = row)
        yield All(ids = [one.id])
    }
    workflow Nightly(rows: [Long]) => (ids: [Long]) andThen {
        all = All(rows = $.rows)
        yield Nightly(ids = all.ids)
    }
}
"""


@pytest.mark.parametrize("paused", [False, True])
async def test_tags_are_stored_of_all_tasks_of_a_run_that_end_together(paused: bool) -> None:
    count = 12
    async with make_engine("memory://") as engine:
        arrived, go = asyncio.Semaphore(0), asyncio.Event()

        @engine.handler("imports.Import", concurrency=count)
        async def import_row(payload: dict[str, Any], ctx: Any) -> dict[str, Any]:
            ctx.tag({f"row{payload['row']}": payload["row"]})
            arrived.release()
            await go.wait()
            return {"id": payload["row"]}

        async with engine.worker(concurrency=count + 4):
            run = await engine.start_run([("imports.afl", ROWS)], "imports.Nightly", {"rows": list(range(count))})
            for _ in range(count):
                await asyncio.wait_for(arrived.acquire(), BOUND)
            if paused:
                await engine.runs.pause(run.id)
            go.set()
            if paused:
                await engine.runs.resume(run.id)
            await engine.run_result(run, timeout=BOUND)
        tasks = await engine.kernel.store.tasks.list_matching(TaskFilter(name="imports.Import"), 100)
        assert sorted([await tags_of(engine, task.id) for task in tasks], key=str) == sorted(
            [{f"row{row}": row} for row in range(count)], key=str
        )
        assert await tags_of(engine, run.id) == {f"row{row}": row for row in range(count)}
