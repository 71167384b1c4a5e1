"""The kinds of database that the conformance suite runs on, each with a time that a test transitions and tables that it can read.

Both clocks stand still: SQLite's store is given a `ManualClock`; in PostgreSQL the tests replace `treadle_now()` by a
function that reads a row of theirs, so that not a millisecond passes by itself and both can be compared exactly.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import apsw
import psycopg
import pytest
from psycopg.rows import dict_row
from tests.schemas import schema_url

from treadle.kernel.store.ports import Store
from treadle.model.tasks import Task
from treadle.testing import ManualClock
from treadle.testing.clock import START_AT
from treadle_conformance.suite import StoreClock, StoreHarness

Row = dict[str, Any]


class Database(StoreHarness):
    """A database of one of Treadle's stores."""

    def schema(self) -> list[tuple[str, ...]]:
        """Return all objects that the migrations created, in a comparable form."""
        raise NotImplementedError


class _ManualTime:
    def __init__(self) -> None:
        self.manual = ManualClock()

    def now(self) -> int:
        return self.manual.now()

    async def advance(self, ms: int) -> None:
        if ms < 0:  # somebody set the machine's clock back
            self.manual._at += ms
        else:
            self.manual.advance(ms / 1000)


def new_file(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The path of a SQLite file: all tables, no rows; with the mark `new_schema`, nothing is there yet."""
    path = tmp_path / "treadle.db"
    if not path.exists() and not request.node.get_closest_marker("new_schema"):
        path.touch(0o600)
        path.write_bytes(_migrated_file())
    return path


@cache
def _migrated_file() -> bytes:
    """A file as the store makes it before its first commit; to copy it takes a tenth of the time of the migrations."""
    from treadle.stores.sqlite.connection.connect import connect, make_durable, make_shrinkable
    from treadle.stores.sqlite.connection.schema import NEWEST, migrate_to

    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/treadle.db"
        connection = connect(path)
        make_shrinkable(connection)
        make_durable(connection)
        migrate_to(connection, NEWEST, path)
        connection.close()
        return Path(path).read_bytes()


class SqliteFile(Database):
    """SQLite as servers use it: a file, a writer thread, readers."""

    inline = False

    def __init__(self, request: pytest.FixtureRequest, tmp_path: Path) -> None:
        super().__init__()
        self.clock = _ManualTime()
        self.path = new_file(request, tmp_path)

    def make_store(self) -> Any:
        from treadle.stores.sqlite import SqliteStore

        return SqliteStore(str(self.path), clock=self.clock.manual, inline=self.inline)

    def _run(self, statement: str) -> list[Row]:
        connection = apsw.Connection(str(self.path))
        try:
            connection.set_busy_timeout(5000)
            connection.row_trace = _as_dict
            return list(connection.execute(statement))
        finally:
            connection.close()

    def rows(self, table: str) -> list[Row]:
        return self._run(f"select * from {table}")

    def execute(self, statement: str) -> None:
        self._run(statement)

    def schema(self) -> list[tuple[str, ...]]:
        found = self._run("select type, name, sql from sqlite_schema where name not like 'sqlite_%'")
        return sorted((row["type"], row["name"], row["sql"] or "") for row in found)


def _as_dict(cursor: apsw.Cursor, row: tuple[Any, ...]) -> Row:
    return dict(zip((name for name, *_ in cursor.get_description()), row, strict=True))


class SqliteInline(SqliteFile):
    """SQLite in a file without threads: the memory store's code, and tables that a test can read."""

    inline = True


class SqliteMemory(Database):
    """SQLite as `poll_once` and simulations use it: in memory, no threads."""

    shared = False

    def __init__(self, request: pytest.FixtureRequest, tmp_path: Path) -> None:
        super().__init__()
        self.clock = _ManualTime()

    def make_store(self) -> Any:
        from treadle.stores.sqlite import SqliteStore

        return SqliteStore(None, clock=self.clock.manual)


class _DatabaseTime:
    def __init__(self, admin: psycopg.Connection[Any], schema: str) -> None:
        self._admin, self._schema, self._at = admin, schema, START_AT
        admin.execute("insert into public.treadle_test_clocks values (%s, %s)", (schema, START_AT))

    def now(self) -> int:
        return self._at

    async def advance(self, ms: int) -> None:
        self._at += ms
        self._admin.execute("update public.treadle_test_clocks set at = %s where schema = %s", (self._at, self._schema))


class Postgres(Database):
    """A schema of a real PostgreSQL."""

    loses_answers = False
    """Whether connections break between commits and their answers."""

    def __init__(self, request: pytest.FixtureRequest, tmp_path: Path, schema: str | None = None) -> None:
        super().__init__()
        self.admin = request.getfixturevalue("postgres_admin")
        self.name = schema or request.getfixturevalue("postgres_schema")
        self.url = schema_url(request.getfixturevalue("postgres_server"), self.name)
        self.clock = _DatabaseTime(self.admin, self.name)

    def make_store(self) -> Any:
        from treadle.stores.postgres import PostgresStore

        return PostgresStore(self.url, clock=ManualClock())

    async def open_store(self, *, migrate: bool = True) -> Store:
        store = await super().open_store(migrate=migrate)
        self.stop_the_clock()
        return store

    def stop_the_clock(self) -> None:
        """Replace `treadle_now()` by a clock that only the test transitions."""
        self.admin.execute(
            f'create or replace function "{self.name}".treadle_now() returns bigint language sql stable parallel safe as '
            f"$$ select at from public.treadle_test_clocks where schema = '{self.name}' $$"
        )

    def rows(self, table: str) -> list[Row]:
        with self.admin.cursor(row_factory=dict_row) as cursor:
            return cursor.execute(f'select * from "{self.name}".{table}').fetchall()

    def execute(self, statement: str) -> None:
        with self.admin.transaction():
            self.admin.execute(f'set local search_path to "{self.name}"')
            self.admin.execute(statement)

    def schema(self) -> list[tuple[str, ...]]:
        found = self.admin.execute(
            """
            select 'column', table_name || '.' || column_name, data_type || ' ' || is_nullable || ' ' || is_identity
              from information_schema.columns where table_schema = %(schema)s
            union all select 'index', indexname, indexdef from pg_indexes where schemaname = %(schema)s
            union all select 'constraint', conname, pg_get_constraintdef(c.oid)
              from pg_constraint c join pg_namespace n on n.oid = c.connamespace where n.nspname = %(schema)s
            union all select 'function', proname, '' from pg_proc p join pg_namespace n on n.oid = p.pronamespace
              where n.nspname = %(schema)s
            union all select 'sequence', sequence_name, '' from information_schema.sequences where sequence_schema = %(schema)s
            """,
            {"schema": self.name},
        ).fetchall()
        return sorted(found)


__all__ = ["DATABASES", "Database", "Postgres", "SqliteFile", "SqliteInline", "SqliteMemory", "StoreClock"]

DATABASES: dict[str, Callable[[pytest.FixtureRequest, Path], Database]] = {
    "sqlite": SqliteFile,
    "memory": SqliteMemory,
    "postgres": Postgres,
}


def is_ready(task: Task) -> bool:
    """Whether a claim would take the task."""
    return not task.finished and task.owner_id is None and task.wake_at is None and not task.blocked_by
