"""The store refuses changes in every table of a moved namespace, whoever makes them, and none in those of others."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import psycopg
import pytest
from tests.contract.databases import new_file
from tests.interfaces.engines import make_engine
from tests.interfaces.test_namespace_moves import Scene, fill

from treadle.kernel.store.namespace_copy import NamespaceRows
from treadle.kernel.store.namespace_tables import BY_NAME, OPERATIONS, TABLES, UNFENCED, NamespaceTable
from treadle.model.errors import NamespaceMoved
from treadle.stores.postgres.connection.address import parse_address
from treadle.stores.postgres.connection.errors import MOVED as POSTGRES_MOVED
from treadle.stores.rules.namespaces import BELONGS
from treadle.stores.sqlite.connection.errors import MOVED as SQLITE_MOVED

NEW_PLACE = "sqlite:///new.db"

NOT_MOVED = {
    "moved_namespaces": "the fences themselves",
    "servers": "processes register again",
    "registered_servers": "processes register again",
    "error_texts": "derived from finished tasks and runs",
}
"""Tables with a namespace that are not part of it."""

CHANGES = {
    "tasks": "version = version + 1",
    "limits": "max_running = coalesce(max_running, 0) + 1",
    "lanes": "backlog_limit = 1000 + coalesce(backlog_limit, 0)",
    "idempotency_outcomes": "status = 'failed'",
}
"""Changes of tables where servers may make others in all namespaces; elsewhere, a row is updated without a change."""

ROWS = (
    "insert into handler_keys (namespace, name, key) values ('{namespace}', 'work', 'printer')",
    """insert into handler_registrations (namespace, facet_name, module_uri, entrypoint, version, checksum, timeout_for,
      requirements, metadata, created_at, updated_at) values ('{namespace}', 'f', 'm', 'e', '1', 'c', 1, '[]', '{{}}', 1, 1)""",
    "insert into llm_budgets (run_id, committed_micros) select id, 0 from runs where namespace = '{namespace}' order by id limit 1",
    """insert into llm_usage (id, run_id, task_id, attempt, request_no, model, state, reserved_micros, cost_micros, input_tokens,
      output_tokens, cache_write_tokens, cache_read_tokens, interrupted, at)
      select r.id, r.id, r.id, 1, 1, 'm', 'reserved', 0, 0, 0, 0, 0, 0, 0, 1 from runs as r where r.namespace = '{namespace}'
      order by r.id limit 1""",
    """insert into idempotency_outcomes (idempotency_key, tool_call_id, status, root_id, created_at)
      select '{namespace}', 'c', 'unknown', id, 1 from tasks where namespace = '{namespace}' order by id limit 1""",
    """insert into record_items (record_id, key, value) select id, 'k', 'v' from records where namespace = '{namespace}'
      order by id limit 1""",
)
"""Rows of tables that the scene leaves empty."""


class Tables:
    """The tables of a store, by SQL of our own."""

    def run(self, statement: str) -> list[tuple[Any, ...]]:
        raise NotImplementedError

    def is_refused(self, statement: str) -> bool:
        """Whether the fence refuses the statement, which is rolled back; other errors come from constraints behind it."""
        raise NotImplementedError

    def list_namespaced(self) -> set[str]:
        raise NotImplementedError

    def columns(self, table: NamespaceTable) -> list[str]:
        """The columns that an insert gives."""
        return [name for name in self._columns(table.name) if name not in table.assigned]

    def _columns(self, table: str) -> list[str]:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError


class SqliteTables(Tables):
    def __init__(self, url: str) -> None:
        self._connection = apsw.Connection(url.removeprefix("sqlite:///"))
        self._connection.set_busy_timeout(5000)

    def run(self, statement: str) -> list[tuple[Any, ...]]:
        return list(self._connection.execute(statement))

    def is_refused(self, statement: str) -> bool:
        self.run("begin immediate")
        try:
            self.run(statement)
        except apsw.ConstraintError as error:
            return SQLITE_MOVED in str(error)
        finally:
            self.run("rollback")
        return False

    def list_namespaced(self) -> set[str]:
        found = self.run(
            "select m.name from sqlite_schema as m, pragma_table_xinfo(m.name) as c where m.type = 'table' and c.name = 'namespace'"
        )
        return {row[0] for row in found}

    def _columns(self, table: str) -> list[str]:
        return [row[0] for row in self.run(f"select name from pragma_table_xinfo('{table}')")]

    def close(self) -> None:
        self._connection.close()


class PostgresTables(Tables):
    def __init__(self, url: str, schema: str) -> None:
        self._connection = psycopg.connect(parse_address(url).dsn)
        self._connection.execute(f"set search_path = {schema}")
        self._connection.commit()

    def run(self, statement: str) -> list[tuple[Any, ...]]:
        cursor = self._connection.execute(statement)
        found = cursor.fetchall() if cursor.description else []
        self._connection.commit()
        return found

    def is_refused(self, statement: str) -> bool:
        try:
            self._connection.execute(statement)
        except psycopg.Error as error:
            return error.sqlstate == POSTGRES_MOVED
        finally:
            self._connection.rollback()
        return False

    def list_namespaced(self) -> set[str]:
        found = self.run(
            "select c.relname from pg_class as c join pg_attribute as a on a.attrelid = c.oid where a.attname = 'namespace' "
            "and c.relnamespace = current_schema()::regnamespace and c.relkind in ('r', 'p') and not c.relispartition"
        )
        return {row[0] for row in found}

    def _columns(self, table: str) -> list[str]:
        cursor = self._connection.execute(f"select * from {table} limit 0")
        self._connection.commit()
        return [column.name for column in cursor.description or ()]

    def close(self) -> None:
        self._connection.close()


@pytest.fixture(params=("sqlite", "postgres"))
def scene(request: pytest.FixtureRequest, tmp_path: Path) -> Scene:
    url = (
        str(request.getfixturevalue("postgres_url")) if request.param == "postgres" else f"sqlite:///{new_file(request, tmp_path)}"
    )
    return Scene(tmp_path, url, NEW_PLACE)


@pytest.fixture
def tables(request: pytest.FixtureRequest, scene: Scene) -> Iterator[Tables]:
    made = (
        SqliteTables(scene.source)
        if scene.source.startswith("sqlite")
        else PostgresTables(scene.source, request.getfixturevalue("postgres_schema"))
    )
    yield made
    made.close()


def statement(tables: Tables, table: NamespaceTable, operation: str, namespace: str) -> str:
    """A statement that writes one row of the namespace."""
    belongs = BELONGS[table.belongs].replace("{row}", "t").replace("{namespace}", f"'{namespace}'")
    key = ", ".join(name for name, _ in table.key)
    one = f"({key}) in (select {key} from {table.name} as t where {belongs} order by {key} limit 1)"
    if operation == "delete":
        return f"delete from {table.name} where {one}"
    columns = tables.columns(table)
    if operation == "update":
        others = [name for name in columns if name not in dict(table.key)] or columns
        return f"update {table.name} set {CHANGES.get(table.name, f'{others[0]} = {others[0]}')} where {one}"
    values = [f"'{namespace}'" if name == "namespace" else name for name in columns]
    return (
        f"insert into {table.name} ({', '.join(columns)}) select {', '.join(values)} from {table.name} where {one} "
        "on conflict do nothing"
    )


async def filled(scene: Scene, tables: Tables) -> None:
    for namespace in ("red", "blue"):
        await fill(scene.engine(namespace))
        for row in ROWS:
            tables.run(row.format(namespace=namespace))


async def test_every_table_with_a_namespace_moves_with_it(scene: Scene, tables: Tables):
    async with scene.engine():
        pass
    own = {table.name for table in TABLES if table.belongs == "own" or table.removable}
    assert tables.list_namespaced() - set(NOT_MOVED) == own - {"blobs"}
    assert {name for name, _ in UNFENCED} <= set(BY_NAME)


async def test_a_moved_namespace_refuses_every_operation_on_every_table_and_others_none(scene: Scene, tables: Tables):
    await filled(scene, tables)
    async with scene.engine("blue") as engine:
        await engine.kernel.store.fence_namespace("red", NEW_PLACE)
        for table in TABLES:
            for namespace in ("red", "blue"):
                page = await engine.kernel.store.read_rows(namespace, table.name, None, 10_000)
                assert page.rows, f"{table.name} of {namespace} has no row to try: add one to ROWS"
        wrong = [
            f"{operation} {table.name} in {namespace}"
            for table in TABLES
            for operation in OPERATIONS
            for namespace in ("red", "blue")
            if tables.is_refused(statement(tables, table, operation, namespace))
            != (namespace == "red" and (table.name, operation) not in UNFENCED)
        ]
        assert wrong == []
        await engine.kernel.store.unfence_namespace("red")
        assert not any(
            tables.is_refused(statement(tables, table, operation, "red")) for table in TABLES for operation in OPERATIONS
        )


async def test_the_refusal_names_the_new_store(scene: Scene):
    async with scene.engine() as engine:
        await engine.enqueue("work")
        await engine.kernel.store.fence_namespace("red", NEW_PLACE)
        for change in (
            engine.enqueue("work"),
            engine.kernel.lists.pause("default"),
            engine.kernel.store.set_keep("red", "default", 1, 1),
        ):
            with pytest.raises(NamespaceMoved, match=r"The namespace red was moved from .* \(red is at sqlite:///new\.db\)"):
                await change


async def test_a_move_writes_and_removes_behind_the_fence(scene: Scene, tables: Tables):
    await filled(scene, tables)
    async with scene.engine("blue") as engine:
        store = engine.kernel.store
        await store.fence_namespace("red", NEW_PLACE)
        rows = NamespaceRows(store, "red")
        before = await rows.digest()
        pages = [page async for page in rows.pages()]
        await rows.remove()
        assert (await rows.digest()).rows == {}
        for table, page in pages:
            await rows.write(table, page)
        assert (await rows.digest()).differences(before) == []
        for table in TABLES:
            for operation in OPERATIONS:
                expected = (table.name, operation) not in UNFENCED
                assert tables.is_refused(statement(tables, table, operation, "red")) is expected, (table.name, operation)


async def test_servers_of_other_namespaces_tidy_up_beside_a_kept_copy(scene: Scene, tables: Tables):
    await filled(scene, tables)
    tables.run("update dedupe set expires_at = 1")
    tables.run("update records set ended_at = 1 where root_id is null")
    async with scene.engine("blue") as engine:
        store = engine.kernel.store
        await store.fence_namespace("red", NEW_PLACE)
        before = await NamespaceRows(store, "red").digest()
        keys, _, records = await store.prune_rest(100, 1, 1)
        assert keys > 0
        assert records > 0
        await store.wake(100)
        assert (await NamespaceRows(store, "red").digest()).differences(before) == []


async def test_fences_that_a_migration_took_away_are_back_when_the_store_is_opened(scene: Scene, tables: Tables):
    async with scene.engine() as engine:
        await engine.enqueue("work")
        await engine.kernel.store.fence_namespace("red", NEW_PLACE)
    if isinstance(tables, SqliteTables):
        for (name,) in tables.run("select name from sqlite_schema where type = 'trigger' and name like '%_moved_%'"):
            tables.run(f"drop trigger {name}")
    async with scene.engine() as engine:
        with pytest.raises(NamespaceMoved):
            await engine.enqueue("work")


async def test_going_down_and_up_again_keeps_the_fence(scene: Scene, tables: Tables):
    async with scene.engine() as engine:
        await engine.enqueue("work")
        await engine.kernel.store.fence_namespace("red", NEW_PLACE)
        await engine.kernel.store.migrate_to(28)
    async with make_engine(scene.source, namespace="red") as engine:
        with pytest.raises(NamespaceMoved):
            await engine.enqueue("work")
        await engine.kernel.store.unfence_namespace("red")
        await engine.enqueue("work")
