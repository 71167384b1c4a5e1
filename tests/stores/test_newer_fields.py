"""Fields that a newer version stored survive every operation of this one that rewrites their row (issue 16.3)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import apsw
import psycopg
import pytest
from tests.engines import SHARED, url_of
from tests.limits import BOUND
from tests.stores import poisoned_scene as scene

from treadle import Engine, TaskFailed
from treadle.engine.operations import Operations
from treadle.model.access import OPEN

FIELD = "from_a_newer_version"
STRUCTURES = (
    "records.id.document",
    "record_items.record_id+key.value",
    "steps.id.document",
    "tasks.id.policy",
    "finished.id.policy",
)
"""Table, key and column of everything that is stored as a structure."""

Query = Callable[..., list[Any]]


@pytest.fixture(params=SHARED)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def url(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return url_of(kind, request, tmp_path)


@pytest.fixture
def query(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Query]:
    """Run a statement directly in the database."""
    if kind == "sqlite":
        file = apsw.Connection(str(tmp_path / "treadle.db"))
        yield lambda text, *values: file.execute(text, values).fetchall()
        file.close()
        return
    options = f"-c search_path={request.getfixturevalue('postgres_schema')} -c session_replication_role=replica"
    with psycopg.connect(request.getfixturevalue("postgres_server"), autocommit=True, options=options) as connection:

        def run(text: str, *values: Any) -> list[Any]:
            done = connection.execute(text.replace("?", "%s"), values or None)
            return [] if done.description is None else done.fetchall()

        yield run


def marked(value: Any) -> Any:
    """The value with one more field in every object."""
    if isinstance(value, list):
        return [marked(each) for each in value]
    if not isinstance(value, dict) or "@blob" in value:
        return value
    return {name: marked(each) for name, each in value.items()} | {FIELD: {"deep": [1, None]}}


def lost(before: Any, after: Any, place: str = "") -> list[str]:
    """The objects of the row that have lost the field."""
    if isinstance(before, list) and isinstance(after, list):
        same = {json.dumps(unmarked(each), sort_keys=True): each for each in after}
        texts = ((each, json.dumps(unmarked(each), sort_keys=True)) for each in before)
        return [found for each, text in texts for found in lost(each, same.get(text), f"{place}[]")]
    if not isinstance(before, dict) or not isinstance(after, dict):
        return []
    here = [place] if FIELD in before and FIELD not in after else []
    return here + [each for name in before if name in after for each in lost(before[name], after[name], f"{place}/{name}")]


def unmarked(value: Any) -> Any:
    """The value without the field."""
    if isinstance(value, list):
        return [unmarked(each) for each in value]
    return {name: unmarked(each) for name, each in value.items() if name != FIELD} if isinstance(value, dict) else value


def rows(query: Query, structure: str) -> Iterator[tuple[tuple[Any, ...], str]]:
    """The keys of the rows of a structure, and their JSON."""
    table, key, column = structure.split(".")
    for *row_id, text in query(f"select {key.replace('+', ', ')}, {column} from {table} where {column} is not null"):
        if text.startswith("{"):
            yield tuple(row_id), text


def documents(query: Query) -> dict[str, Any]:
    found = {}
    for structure in STRUCTURES:
        for row_id, text in rows(query, structure):
            found[f"{structure} {row_id}"] = json.loads(text)
    return found


def mark(query: Query) -> None:
    guards = query("select name, sql from sqlite_master where type = 'trigger'") if _is_sqlite(query) else []
    for name, _ in guards:
        query(f"drop trigger {name}")
    for structure in STRUCTURES:
        table, key, column = structure.split(".")
        for row_id, text in list(rows(query, structure)):
            where = key.replace("+", " = ? and ")
            query(f"update {table} set {column} = ? where {where} = ?", json.dumps(marked(json.loads(text))), *row_id)
    for _, guard in guards:
        query(guard)


def _is_sqlite(query: Query) -> bool:
    try:
        query("select 1 from sqlite_master")
    except psycopg.Error:
        return False
    return True


@pytest.mark.postgres
async def test_every_operation_keeps_the_fields_of_a_newer_version(url: str, query: Query, tmp_path: Path) -> None:
    await scene.fill(url, tmp_path)
    async with scene.make(url, tmp_path) as engine:
        await _fire(engine, tmp_path, "first")
    mark(query)
    before = documents(query)
    versions = _versions(query)
    async with scene.make(url, tmp_path) as engine:
        await _operate(engine, tmp_path)
        assert (await engine.kernel.verify()).problems == ()
    after = documents(query)
    assert {name: lost(text, after.get(name)) for name, text in before.items() if lost(text, after.get(name))} == {}
    rewritten = {entity for row_id, (entity, version) in _versions(query).items() if versions.get(row_id, ("", 0))[1] < version}
    assert rewritten >= {"schedule", "watcher", "approval", "external_production_record", "token", "objective"}
    items = {name: text for name, text in after.items() if name.startswith("record_items") and "size" in text}
    assert [name for name, text in items.items() if FIELD in text and unmarked(text) != unmarked(before[name])], items


async def _fire(engine: Engine, folder: Path, text: str) -> None:
    """Let a schedule tick and a watcher notice a change."""
    service = Operations(engine, OPEN)
    (folder / "incoming" / "0.txt").write_text(text)
    fired = [(await service.schedules.get("schedule1")).fired, (await service.watchers.get("watcher1")).fired]
    await service.schedules.edit("schedule1", every=1.0)
    await service.watchers.edit("watcher1", every=1.0, settle=0.0)
    async with engine.worker(), asyncio.timeout(BOUND):

        async def both() -> bool:
            now = [(await service.schedules.get("schedule1")).fired, (await service.watchers.get("watcher1")).fired]
            return all(more > before for more, before in zip(now, fired, strict=True))

        await scene.until(both)
    await service.schedules.edit("schedule1", every=3600.0)
    await service.watchers.edit("watcher1", every=3600.0)


def _versions(query: Query) -> dict[str, tuple[str, int]]:
    return {str(row[0]): (row[1], row[2]) for row in query("select id, entity, version from records")}


async def _operate(engine: Engine, folder: Path) -> None:
    """Make every kind of change of a stored structure."""
    service = Operations(engine, OPEN)
    schedules, watchers = service.schedules, service.watchers
    await schedules.edit("schedule0", cron="0 4 * * *", catch_up="all", priority=3)
    await schedules.edit("schedule0", every=60.0)
    await _fire(engine, folder, "another text")
    await schedules.pause("schedule1")
    await schedules.resume("schedule1")
    await schedules.run_now("schedule1")
    await schedules.remove("schedule2")
    await watchers.edit("watcher0", every=60.0)
    await watchers.pause("watcher1")
    await watchers.resume("watcher1")
    await watchers.remove("watcher2")
    approvals = (await service.approvals.list()).approvals
    await service.approvals.approve(approvals[0].id)
    await service.approvals.deny(approvals[1].id)
    jobs = (await service.external_jobs.list()).jobs
    await service.external_jobs.poll_now(jobs[0].id)
    await service.external_jobs.cancel(jobs[1].id)
    await service.external_jobs.rebuild()
    await service.tokens.revoke("token0")
    objectives = [each for each in (await service.objectives.list()).objectives if each.status == "NEW"]
    await service.objectives.edit(objectives[0].objective_id, title="Another title")
    await service.objectives.approve(objectives[1].objective_id)
    runs = [each for each in (await service.runs.list()).runs if each.workflow == "trip"]
    (folder / "incoming" / "0.txt").write_text("changed")
    await watchers.look("watcher0")
    async with engine.worker(), asyncio.timeout(BOUND):
        await service.runs.signal(runs[0].id, "go")
        await engine.run_result(runs[0].id)

        async def polled() -> bool:
            return (await service.external_jobs.get(jobs[0].id)).polls > 0

        await scene.until(polled)
        for task in await engine.kernel.reads.list_tasks(kind="handler", states=("pending",), limit=1000):
            if task.name == "work":
                with suppress(TaskFailed):  # those of schedules and watchers have another payload
                    await engine.result(task.id)
