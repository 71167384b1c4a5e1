"""A retry of a run repeats items whose errors `collectErrors` has collected, if the run failed because of them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.engines import SHARED, url_of
from tests.limits import BOUND

from treadle import Engine, RunFailed
from treadle.model.errors import Refused
from treadle.model.names import HANDLER
from treadle.model.states import TaskState
from treadle.settings import Settings
from treadle.testing.environment import Environment

FLOW = """
namespace batch {
    schema Failure { index: Long, item: Json, error: String, error_type: String }
    event facet Import(row: Long) => (id: Long)
    event facet Mark(id: Long) => (id: Long)
    event facet Check(failed: [Failure], other: Long) => (ok: Boolean)
    event facet Other() => (n: Long)
    event facet Last(ok: Boolean) => (n: Long)
    workflow Nightly(rows: [Long]) => (ids: [Long] = [], failed: [Failure]) andThen foreach row in $.rows collectErrors(failed) {
        one = Import(row = row)
        two = Mark(id = one.id)
        yield Nightly(ids = [two.id])
    }
    workflow Whole(rows: [Long]) => (ids: [Long] = [], n: Long = 0) andThen {
        other = Other()
        night = Nightly(rows = $.rows)
        check = Check(failed = night.failed, other = other.n)
        last = Last(ok = check.ok)
        yield Whole(ids = night.ids, n = last.n)
    }
    workflow Group(rows: [Long]) => (ids: [Long] = []) andThen {
        night = Nightly(rows = $.rows)
        check = Check(failed = night.failed, other = 1)
        last = Last(ok = check.ok)
        yield Group(ids = night.ids)
    }
    workflow Groups(rows: [[Long]]) => (ids: [Long] = [], failed: [Failure]) andThen foreach row in $.rows collectErrors(failed) {
        group = Group(rows = row)
        yield Groups(ids = group.ids)
    }
    workflow Deep(rows: [[Long]]) => (ids: [Long] = []) andThen {
        groups = Groups(rows = $.rows)
        check = Check(failed = groups.failed, other = 1)
        last = Last(ok = check.ok)
        yield Deep(ids = groups.ids)
    }
    workflow Body(rows: [Long]) => (ids: [Long] = []) andThen {
        night = Many() andThen foreach row in $.rows collectErrors(failed) {
            one = Import(row = row)
            yield Many(ids = [one.id])
        }
        check = Check(failed = night.failed, other = 1)
        yield Body(ids = night.ids)
    }
    facet Many() => (ids: [Long] = [], failed: [Failure])
    workflow Aside(rows: [Long]) => (ids: [Long] = [], n: Long = 0) andThen {
        night = Nightly(rows = $.rows)
        last = Last(ok = true)
        yield Aside(ids = night.ids, n = last.n)
    }
}
"""
ROWS = [1, 2, 3, 4]


class Program:
    """The handlers of the flow: odd rows fail until they are repaired, and the check refuses failures."""

    def __init__(self, env: Environment) -> None:
        self.env, self.broken, self.last_broken = env, True, False
        self.calls: list[tuple[str, Any]] = []
        handler = env.engine.handler

        @handler("batch.Import")
        async def take(payload: dict[str, Any]) -> dict[str, Any]:
            self.calls.append(("Import", payload["row"]))
            if self.broken and payload["row"] % 2:
                raise ValueError(f"{payload['row']} is broken")
            return {"id": payload["row"] * 10}

        @handler("batch.Mark")
        async def mark(payload: dict[str, Any]) -> dict[str, Any]:
            self.calls.append(("Mark", payload["id"]))
            return {"id": payload["id"]}

        @handler("batch.Other")
        async def other(payload: dict[str, Any]) -> dict[str, Any]:
            self.calls.append(("Other", None))
            return {"n": 1}

        @handler("batch.Check")
        async def check(payload: dict[str, Any]) -> dict[str, Any]:
            self.calls.append(("Check", len(payload["failed"])))
            if payload["failed"]:
                raise ValueError(f"{len(payload['failed'])} failed")
            return {"ok": True}

        @handler("batch.Last")
        async def last(payload: dict[str, Any]) -> dict[str, Any]:
            self.calls.append(("Last", None))
            if self.last_broken:
                raise ValueError("the last step is broken")
            return {"n": 7}

    async def start(self, workflow: str, rows: Any = None, **options: Any) -> str:
        started = await self.env.engine.start_run([("batch.afl", FLOW)], workflow, {"rows": rows or ROWS}, **options)
        with pytest.raises(RunFailed):
            await self.env.result(started.id)
        self.calls.clear()
        return started.id


@pytest.fixture
async def program() -> AsyncIterator[Program]:
    async with Environment() as env:
        yield Program(env)
        assert (await env.engine.kernel.verify()).problems == ()


async def test_a_retry_repeats_the_items_behind_the_failure_and_all_that_followed(program: Program) -> None:
    run_id = await program.start("Whole")
    runs = program.env.engine.kernel.runs
    await runs.retry(run_id)  # still broken: everything happens as before
    with pytest.raises(RunFailed):
        await program.env.result(run_id)
    assert sorted(program.calls, key=str) == [("Check", 2), ("Import", 1), ("Import", 3)]
    program.broken = False
    program.calls.clear()
    await runs.retry(run_id)
    assert await program.env.result(run_id) == {"ids": [10, 20, 30, 40], "n": 7}
    again = [("Check", 0), ("Import", 1), ("Import", 3), ("Last", None), ("Mark", 10), ("Mark", 30)]
    assert sorted(program.calls, key=str) == again
    shown = await program.env.engine.kernel.run_reads.list_steps(run_id)
    assert {str(step.state) for step in shown} == {"completed"}
    assert len({step.row.place for step in shown}) == len(shown)


@pytest.mark.parametrize("policy", ["stop", "finish"])
async def test_failures_collected_within_collected_failures_are_repeated(program: Program, policy: str) -> None:
    run_id = await program.start("Deep", [[1, 2], [4], [3]], on_failure=policy)
    for _ in range(2):
        await program.env.engine.runs.retry(run_id)
        with pytest.raises(RunFailed):
            await program.env.result(run_id)
        again = [("Check", 1), ("Check", 1), ("Check", 2), ("Import", 1), ("Import", 3)]
        assert sorted(program.calls, key=str) == again
        program.calls.clear()
    program.broken = False
    await program.env.engine.runs.retry(run_id)
    assert await program.env.result(run_id) == {"ids": [10, 20, 40, 30]}
    assert sorted(call for call in program.calls if call[0] in ("Import", "Mark")) == [
        ("Import", 1),
        ("Import", 3),
        ("Mark", 10),
        ("Mark", 30),
    ]


async def test_failures_collected_in_the_body_of_a_step_are_repeated(program: Program) -> None:
    run_id = await program.start("Body")
    program.broken = False
    await program.env.engine.runs.retry(run_id)
    assert await program.env.result(run_id) == {"ids": [10, 20, 30, 40]}
    assert sorted(program.calls, key=str) == [("Check", 0), ("Import", 1), ("Import", 3)]


async def test_a_failed_item_is_retried_by_its_task(program: Program) -> None:
    run_id = await program.start("Whole")
    engine = program.env.engine
    failed = await engine.kernel.reads.list_tasks(states=(TaskState.FAILED,), name="batch.Import", kind=HANDLER)
    assert len(failed) == 2
    program.broken = False
    await engine.retry(failed[0].id)
    with pytest.raises(RunFailed, match="1 failed"):
        await program.env.result(run_id)
    await engine.retry(failed[1].id)
    assert await program.env.result(run_id) == {"ids": [10, 20, 30, 40], "n": 7}


async def test_collected_failures_stay_if_the_run_failed_of_something_else(program: Program) -> None:
    program.last_broken = True
    run_id = await program.start("Aside", on_failure="finish")
    program.last_broken = program.broken = False
    await program.env.engine.runs.retry(run_id)
    assert await program.env.result(run_id) == {"ids": [20, 40], "n": 7}
    assert program.calls == [("Last", None)]


async def test_a_completed_run_keeps_its_collected_failures(program: Program) -> None:
    run_id = (await program.env.engine.start_run([("batch.afl", FLOW)], "Nightly", {"rows": ROWS})).id
    assert len((await program.env.result(run_id))["failed"]) == 2
    (first, _) = await program.env.engine.kernel.reads.list_tasks(states=(TaskState.FAILED,), kind=HANDLER)
    with pytest.raises(Refused, match="`treadle runs fork"):
        await program.env.engine.retry(first.id)
    assert first.step_id is not None
    program.broken = False
    forked = await program.env.engine.runs.fork(run_id, first.step_id)
    assert len((await program.env.result(forked.id))["failed"]) == 1


@pytest.mark.parametrize("kind", SHARED)
async def test_collected_failures_are_repeated_on_every_store(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """Two engines, each of which has cached the run."""
    url = url_of(kind, request, tmp_path)
    broken = True

    async def take(payload: dict[str, Any]) -> dict[str, Any]:
        if broken and payload["row"] % 2:
            raise ValueError("broken")
        return {"id": payload["row"]}

    async def check(payload: dict[str, Any]) -> dict[str, Any]:
        if payload["failed"]:
            raise ValueError(f"{len(payload['failed'])} failed")
        return {"ok": True}

    engines = [Engine(url, settings=Settings()) for _ in range(2)]
    for engine in engines:
        engine.handler("batch.Import")(take)
        engine.handler("batch.Check")(check)
    first, second = engines
    async with first, second, first.worker(), second.worker():
        started = await first.start_run([("batch.afl", FLOW)], "Body", {"rows": list(range(40))})
        with pytest.raises(RunFailed, match="20 failed"):
            await first.run_result(started.id, timeout=BOUND)
        await second.runs.retry(started.id)
        with pytest.raises(RunFailed, match="20 failed"):
            await first.run_result(started.id, timeout=BOUND)
        broken = False
        await first.runs.retry(started.id)
        assert await second.run_result(started.id, timeout=BOUND) == {"ids": list(range(40))}
        assert (await first.kernel.verify()).problems == ()
