"""A row whose stored text cannot be read affects only itself (issue 16.2).

Each test damages one row of every kind at once, in every column that holds JSON, and keeps two healthy ones beside it.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

import apsw
import psycopg
import pytest
from tests.limits import BOUND
from tests.sizes import left_out
from tests.stores import poisoned_scene as scene

from treadle import Engine
from treadle.agents import Evaluator, Persistence, RegistryRunner
from treadle.api.flows import SourceText
from treadle.engine.operations import Operations
from treadle.kernel import documents
from treadle.kernel.store.value_store import ValueLost
from treadle.model.access import OPEN
from treadle.model.errors import TaskFailed, TreadleError, UnreadableValue
from treadle.settings import Settings

pytestmark = pytest.mark.xdist_group("stores poisoned rows")

DAMAGES = [
    "truncated",
    "null",
    "mistyped",
    "newer",
    *map(left_out, ("empty", "list", "number", "text")),
]
Query = Callable[..., list[Any]]


class Poison:
    """A filled database, and what was damaged in it: the ids of the damaged rows and of everything they belong to."""

    def __init__(self, url: str, query: Query) -> None:
        self.url = url
        self.query = query
        self.ids = {name: [row[0] for row in query(text)] for name, text in scene.PARAMETERS.items()}
        self.touched: set[str] = set()
        self.rows: dict[str, str] = {}
        """The ids of the damaged records, by entity."""
        self.damaged: dict[str, str] = {}
        """The ids of the damaged rows, by table, column and group."""

    def damage(self, kind: str, only: str = "") -> None:
        for table, columns in scene.TEXTS.items():
            group = scene.GROUPS.get(table)
            groups = [row[0] for row in self.query(f"select distinct {group} from {table}")] if group else [None]
            for each in groups:
                for column in columns:
                    if only in f"{table}.{column}.{each}":
                        self._damage(kind, table, column, group, each)

    def _damage(self, kind: str, table: str, column: str, group: str | None, each: str | None) -> None:
        where = f"{column} is not null" + (f" and {group} = '{each}'" if group else "")
        key = "seq" if table in ("log", "mail") else scene.KEYS.get(table, "id")
        found = self.query(f"select {key}, {column} from {table} where {where} order by {key} limit 1")
        if not found:
            return
        row_id, text = found[0]
        text = scene.damaged(text).get(kind)
        if text is None:
            return
        if self.write(f"update {table} set {column} = ? where {key} = ?", text, row_id):
            self.touched |= self._owners(table, key, row_id)
            self.damaged[f"{table}.{column}.{each or ''}"] = str(row_id)
            if table == "records":
                self.rows[str(each)] = str(row_id)

    def write(self, text: str, *values: Any) -> bool:
        """Return whether the database accepts the damaged value."""
        self.query(text, *values)
        return True

    def _owners(self, table: str, key: str, row_id: Any) -> set[str]:
        names = ("id", "run_id", "task_id", "root_id", "entity_id", "record_id", "parent_id", "name", "facet_name")
        kept = [name for name in names if name in self.columns(table)]
        (row,) = self.query(f"select {', '.join(kept) or key} from {table} where {key} = ? limit 1", row_id)
        found = {str(value) for value in row if value is not None}
        of_run = "select root_id from runs where cast(id as text) = ? or cast(root_id as text) = ?"
        trees = {each[0] for value in found for each in self.query(of_run, value, value)}
        flows = {each[0] for value in found for each in self.query("select name from flow_versions where flow_id = ?", value)}
        return found | trees | flows

    def columns(self, table: str) -> list[str]:
        return [row[0] for row in self.query(f"select name from pragma_table_info('{table}')")]

    def is_healthy(self, name: str) -> bool:
        """Whether the call concerns no damaged row."""
        return not any(each in name for each in self.touched)


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a store with three rows of everything."""
    folder = tmp_path_factory.mktemp("filled")
    asyncio.run(scene.fill(f"sqlite:///{folder / 'treadle.db'}", folder))
    return folder


@pytest.fixture
def poison(filled: Path, tmp_path: Path) -> Iterator[Poison]:
    """A copy of it."""
    for path in filled.glob("treadle.db*"):
        shutil.copy(path, tmp_path)
    connection = apsw.Connection(str(tmp_path / "treadle.db"))
    guards = connection.execute("select name, sql from sqlite_master where type = 'trigger'").fetchall()

    def query(text: str, *values: Any) -> list[Any]:
        if not text.startswith("update"):
            return connection.execute(text, values).fetchall()
        for name, _ in guards:  # they let nobody else write what these tests write
            connection.execute(f"drop trigger {name}")
        connection.execute(text, values)
        assert connection.changes()
        for _, guard in guards:
            connection.execute(guard)
        return []

    yield Poison(f"sqlite:///{tmp_path / 'treadle.db'}", query)
    connection.close()


def test_the_tests_cover_every_text_column(poison: Poison) -> None:
    tables = [row[0] for row in poison.query("select name from sqlite_master where type = 'table' and name not like 'sqlite%'")]
    found = {
        (table, name)
        for table in tables
        for name, kind in poison.query(f"select name, type from pragma_table_info('{table}')")
        if kind == "TEXT" and not name.endswith("id") and name not in ("error_code", "fingerprint", "digest", "tool_call_id")
    }
    known = {(table, name) for each in (scene.TEXTS, scene.WORDS) for table, names in each.items() for name in names}
    assert {each for each in found - known if not each[0].startswith("treadle")} == set()


@pytest.mark.parametrize("kind", DAMAGES)
async def test_every_call_serves_the_healthy_rows(poison: Poison, tmp_path: Path, kind: str) -> None:
    """No damaged row hides a healthy one, or fails a call without its name."""
    await _check_reads(poison, tmp_path, kind)


async def _check_reads(poison: Poison, tmp_path: Path, kind: str) -> None:
    async with scene.make(poison.url, tmp_path) as engine:
        works = await _working(scene.reads(engine, poison.ids))
        poison.damage(kind)
        refused = {}
        for name, call in scene.reads(engine, poison.ids).items():
            if name not in works:
                continue
            try:
                await call()
            except (UnreadableValue, ValueLost) as error:
                refused[name] = str(error)
        problems = [f"{name}: {text}" for name, text in refused.items() if " " not in name or poison.is_healthy(name)]
        assert problems == [], problems


class PostgresPoison(Poison):
    """The same in a PostgreSQL schema."""

    def columns(self, table: str) -> list[str]:
        known = "select column_name from information_schema.columns where table_schema = current_schema() and table_name = ?"
        return [row[0] for row in self.query(known, table)]

    def write(self, text: str, *values: Any) -> bool:
        try:
            self.query(text, *values)
        except psycopg.errors.DataError:
            return False  # an index casts the documents of live external jobs
        return True


@pytest.mark.postgres_all
async def test_postgresql_confines_damaged_rows_too(
    postgres_url: str, postgres_server: str, postgres_schema: str, tmp_path: Path
) -> None:
    await scene.fill(postgres_url, tmp_path)
    options = f"-c search_path={postgres_schema} -c session_replication_role=replica"
    with psycopg.connect(postgres_server, autocommit=True, options=options) as connection:

        def query(text: str, *values: Any) -> list[Any]:
            done = connection.execute(text.replace("?", "%s"), values or None)
            if done.description is None:
                assert done.rowcount
                return []
            return [tuple(str(each) if isinstance(each, UUID) else each for each in row) for row in done.fetchall()]

        poison = PostgresPoison(postgres_url, query)
        await _check_reads(poison, tmp_path, "truncated")
        await _check_workers(poison, tmp_path)
        query('update records set document = \'{"polls": "many"}\', ended_at = 1 where id = ?', poison.ids["job_id"][0])
        assert len(query("select object_id, polls, external_job_id from external_production_records_view")) == 3


async def _working(calls: dict[str, Callable[[], Any]]) -> set[str]:
    works = set()
    for name, call in calls.items():
        try:
            await call()
        except TreadleError:
            continue
        works.add(name)
    return works


@pytest.mark.parametrize("kind", DAMAGES)
async def test_workers_process_the_healthy_rows_and_settle_the_others_once(poison: Poison, tmp_path: Path, kind: str) -> None:
    """No damaged row stops a worker or is settled twice."""
    poison.damage(kind)
    await _check_workers(poison, tmp_path)


async def _check_workers(poison: Poison, tmp_path: Path) -> None:
    engine = scene.make(poison.url, tmp_path)
    async with engine:
        waiting = [
            each.id
            for each in await engine.kernel.reads.list_tasks(kind="handler", states=("pending",), limit=1000)
            if each.name == "work"
        ]
        trips = [row[0] for row in poison.query("select id from runs where workflow = 'trip' order by id")]
        async with engine.worker(), asyncio.timeout(BOUND):
            for run_id in trips[1:]:
                await engine.signal(run_id, "go", {})
                assert await engine.run_result(run_id) == {"arrived": True}
            for task_id in waiting:
                try:
                    await engine.result(task_id)
                except TaskFailed:
                    assert task_id in poison.touched
                    task = await engine.kernel.reads.get_task(task_id)
                    assert (task.attempt, task.takeovers) == (1, 0)
        problems = (await engine.kernel.verify()).problems
        assert not [
            each for each in problems if "external_production_record" not in each and "does not match its digest" not in each
        ]


@pytest.mark.parametrize("kind", ["truncated", "mistyped"])
async def test_damaged_rows_are_listed_as_unreadable_and_can_be_ended_or_repaired(
    poison: Poison, tmp_path: Path, kind: str
) -> None:
    poison.damage(kind, "records.document")
    poison.damage(kind, "tasks.policy")
    poison.damage(kind, "steps.document")
    async with scene.make(poison.url, tmp_path) as engine:
        service, rows = Operations(engine, OPEN), poison.rows
        await _listed(engine, rows)
        await service.schedules.remove(rows["schedule"])
        await service.watchers.remove(rows["watcher"])
        await service.tokens.revoke(rows["token"])
        approval = await service.approvals.get(rows["approval"])
        await service.tasks.cancel(approval.task_id)
        await service.external_jobs.rebuild()
        (job,) = [each for each in (await service.external_jobs.list()).jobs if each.id == rows["external_production_record"]]
        assert job.state == "awaiting_external"
        await service.objectives.edit(rows["objective"], title="Anew")
        film = poison.query("select id from runs where workflow = 'film.Film' order by id")[0][0]
        assert any("unreadable_value" in str(each.error) for each in (await service.steps.list(film, values=True)).steps)
        await service.runs.cancel(film)
        await service.runs.rerun(film)
        damaged = [each.id for each in (await service.tasks.list(limit=1000)).tasks if "@unreadable" in (each.policy or {})]
        for task_id in damaged:
            await service.tasks.cancel(task_id)
        left = [each.state for each in (await service.schedules.list()).schedules + (await service.watchers.list()).watchers]
        left += [each.state for each in (await service.tokens.list()).tokens]
        assert "unreadable" not in left
        assert (await service.objectives.get(rows["objective"])).title == "Anew"
        assert (await engine.kernel.verify()).problems == ()


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("kind", ["truncated", "mistyped"])
async def test_every_run_with_damaged_steps_and_checkpoints_is_explained_and_can_be_canceled(
    poison: Poison, tmp_path: Path, kind: str, *, force: bool
) -> None:
    for run_id in poison.ids["run_id"]:  # all of them
        for table, column, each in poison.query(
            "select 'tasks', 'checkpoint', id from tasks where run_id = ?1 and checkpoint is not null"
            " union all select 'steps', 'document', id from steps where run_id = ?1",
            run_id,
        ):
            (text,) = poison.query(f"select {column} from {table} where id = ?", each)[0]
            if (changed := scene.damaged(text).get(kind)) is not None:
                poison.query(f"update {table} set {column} = ? where id = ?", changed, each)
    async with scene.make(poison.url, tmp_path) as engine:
        runs = Operations(engine, OPEN).runs
        live = [each for each in (await runs.list(limit=1000)).runs if each.finished_at is None]
        assert {each.workflow for each in live} >= {"film.Film", "trip", "tour"}
        for each in live:
            assert (await runs.get(each.id)).why.text
            await runs.cancel(each.id, force=force)
            assert (await runs.get(each.id)).state == "canceled"


async def test_functions_with_damaged_notes_continue(poison: Poison, tmp_path: Path) -> None:
    poison.query("update tasks set checkpoint = ? where run_id in (select id from runs where workflow = 'trip')", '{"wake')
    async with scene.make(poison.url, tmp_path) as engine, engine.worker(), asyncio.timeout(BOUND):
        for (run_id,) in poison.query("select id from runs where workflow = 'trip'"):
            await engine.signal(run_id, "go", {})
            assert await engine.run_result(run_id) == {"arrived": True}


def test_every_json_column_is_verified_or_has_a_reason() -> None:
    known = {table: set(columns) for table, columns in documents.TEXTS.items()}
    assert known | {"finished": known["tasks"]} == {
        table: {*columns, "result"} if table == "tasks" else set(columns) for table, columns in scene.TEXTS.items()
    }
    assert all(len(reason) > 20 for columns in documents.TEXTS.values() for reason in columns.values() if isinstance(reason, str))


def _is_verified(where: str) -> bool:
    """Whether `verify` reads the column: here, or in the store, which then names the row."""
    table, column, _ = where.split(".")
    reader = documents.TEXTS["tasks" if table == "finished" else table][column]
    return not isinstance(reader, str) or table in ("flows", "handler_registrations", "servers")


async def _verified(engine: Engine) -> list[str]:
    problems, after = list[str](), None
    while True:
        page = await Operations(engine, OPEN).store.verify(after=after, limit=7)
        problems += page.problems
        assert page.holds == (not page.problems)
        if (after := page.next_after) is None:
            return problems


async def test_verify_names_every_damaged_row_and_its_repair(poison: Poison, tmp_path: Path) -> None:
    async with scene.make(poison.url, tmp_path) as engine:
        assert await _verified(engine) == []
        poison.damage("truncated")
        problems = await _verified(engine)
    for where, row_id in poison.damaged.items():
        if where.startswith(("mail", "log")):
            named = "id from mail" if where.startswith("mail") else "entity_id from log"
            row_id = poison.query(f"select {named} where seq = ?", int(row_id))[0][0]
        if _is_verified(where):
            assert [each for each in problems if row_id in each], (where, problems)
    assert all(len(each) < 600 for each in problems)
    (schedule,) = [each for each in problems if each.startswith("schedule ")]
    assert "cannot be read" in schedule
    assert "Repair: `treadle schedules edit`" in schedule


READ = [
    (table, column)
    for name, columns in documents.TEXTS.items()
    for table in ((name, "finished") if name == "tasks" else (name,))
    for column, reader in columns.items()
    if not isinstance(reader, str)
]


async def test_verify_reads_every_column_also_those_that_are_mostly_empty(poison: Poison, tmp_path: Path) -> None:
    owners = {"log": "entity_id", "mail": "id", "record_items": "record_id", "idempotency_outcomes": "task_id"}
    owners |= {"stream_chunks": "owner_id"}
    expected = []
    for table, column in READ:
        key, where = owners.get(table, "id"), " where entity = 'task'" if table == "log" else ""
        if (table, column) == ("tasks", "result"):
            continue  # live tasks have none
        if table == "record_items":
            where = " where record_id in (select id from records where entity in ('watcher', 'thread'))"
        owner = poison.query(f"select {key} from {table}{where} order by {key} limit 1")[0][0]
        poison.query(f"update {table} set {column} = ? where {key} = ?", f'{{"{column}', owner)
        expected.append((str(owner), "retry policy" if column == "policy" else column))
    async with scene.make(poison.url, tmp_path) as engine:
        problems = await _verified(engine)
    for owner, column in expected:
        found = [each for each in problems if owner in each and f": its {column} cannot be read: " in each]
        assert found, (owner, column, problems)
        assert all(" Repair: " in each for each in found)


@pytest.mark.parametrize("column", ["sources", "program"])
async def test_publishing_a_damaged_flow_again_repairs_it(poison: Poison, tmp_path: Path, column: str) -> None:
    poison.damage("truncated", f"flows.{column}")
    async with scene.make(poison.url, tmp_path) as engine:
        service = Operations(engine, OPEN)
        before = (await service.flows.list()).flows
        await service.flows.publish("films", [SourceText("film.afl", scene.FLOW)])
        assert [each.flow_id for each in (await service.flows.list()).flows] == [each.flow_id for each in before]
        assert (await service.flows.get("films")).sources[0].text == scene.FLOW
        film = poison.query("select id from runs where workflow = 'film.Film' order by id")[0][0]
        await service.runs.cancel(film)
        await service.runs.rerun(film)
        assert await _verified(engine) == []


@pytest.mark.parametrize("column", ["metadata", "requirements"])
async def test_a_damaged_registration_is_listed_and_not_loaded(poison: Poison, tmp_path: Path, column: str) -> None:
    poison.damage("truncated", f"handler_registrations.{column}")
    (name,) = poison.damaged.values()
    async with scene.make(poison.url, tmp_path) as engine:
        handlers = Operations(engine, OPEN).handlers
        listed = {each.facet_name: each.unreadable for each in (await handlers.list()).handlers}
        assert f"Its {column} cannot be read" in (listed.pop(name) or "")
        assert (len(listed), set(listed.values())) == (2, {None})
        for call in (
            partial(handlers.test, name),
            partial(handlers.edit, name, version="2"),
            partial(handlers.edit, name, metadata={}),
        ):
            with pytest.raises(UnreadableValue, match="Register it again"):
                await call()
    with Persistence(poison.url, settings=Settings()) as persistence:
        runner = RegistryRunner(persistence, Evaluator(persistence))
        runner.refresh()
        assert runner.registered_names() == sorted(listed)
        runner.register_handler(name, "missing", metadata={"n": 1})
        runner.refresh()
        assert runner.registered_names() == sorted([name, *listed])


async def _listed(engine: Engine, rows: dict[str, str]) -> None:
    service = Operations(engine, OPEN)
    for entity, page in {
        "schedule": (await service.schedules.list()).schedules,
        "watcher": (await service.watchers.list()).watchers,
        "external_production_record": (await service.external_jobs.list()).jobs,
        "token": (await service.tokens.list()).tokens,
    }.items():
        states = {each.id: each.state for each in page}
        assert (states.pop(rows[entity]), len(states)) == ("unreadable", 2), entity
        assert "unreadable" not in states.values()
    titles = {each.id: each.title for each in (await service.approvals.list()).approvals}
    assert titles.pop(rows["approval"]).startswith("(unreadable)")
    assert set(titles.values()) == {"Go?"}
    shown = await service.objectives.get(rows["objective"])
    assert shown.title.startswith("(unreadable)")
    status = await service.system.status()
    assert any("cannot be read: schedule schedule0, watcher watcher0" in each for each in status.reasons)
