"""The description of a task's columns agrees with the record and with the tables of both stores."""

from __future__ import annotations

from importlib.resources import files

import apsw
import psycopg
import pytest

from treadle.model.tasks import TASK_COLUMNS, ColumnUse, NewTask, Task
from treadle.stores.sqlite.connection.connect import connect
from treadle.stores.sqlite.connection.schema import NEWEST, migrate_to
from treadle.stores.statements import COLUMN_SETS, load_statements

QUEUE = ("kind", "task_list", "name")
"""Fields of a task that its queue has."""

SQLITE_TYPES = {"uuid": "TEXT", "text": "TEXT", "integer": "INTEGER", "bigint": "INTEGER"}


def test_the_record_has_the_described_columns_in_their_order() -> None:
    assert [name for name in Task.__struct_fields__ if name not in QUEUE] == [column.name for column in TASK_COLUMNS]


def test_a_new_task_has_the_columns_that_an_insert_copies() -> None:
    others = {"queue_id", "namespace"}
    assert {column.name for column in COLUMN_SETS["given"]} - others <= set(NewTask.__struct_fields__)


def test_columns_are_copied_only_between_tables_that_have_them() -> None:
    for column in TASK_COLUMNS:
        if ColumnUse.CARRIED in column.use or ColumnUse.REDRIVEN in column.use:
            assert ColumnUse.BOTH in column.use, column


@pytest.mark.parametrize(("table", "use"), [("tasks", ColumnUse.LIVE), ("finished", ColumnUse.FINISHED)])
def test_the_tables_of_sqlite_have_the_described_columns(table: str, use: ColumnUse) -> None:
    connection: apsw.Connection = connect(None)
    migrate_to(connection, NEWEST, "memory")
    found = {name: kind for _, name, kind, *_ in connection.execute(f"pragma table_info({table})")}
    assert found == {column.name: SQLITE_TYPES[column.type] for column in TASK_COLUMNS if use in column.use}
    connection.close()


@pytest.mark.parametrize(("table", "use"), [("tasks", ColumnUse.LIVE), ("finished", ColumnUse.FINISHED)])
def test_the_tables_of_postgresql_have_the_described_columns(
    postgres_admin: psycopg.Connection, postgres_schema: str, table: str, use: ColumnUse
) -> None:
    query = "select column_name, data_type from information_schema.columns where table_schema = %s and table_name = %s"
    found = dict(postgres_admin.execute(query, (postgres_schema, table)).fetchall())
    assert found == {column.name: column.type for column in TASK_COLUMNS if use in column.use}


@pytest.mark.parametrize("store", ["sqlite", "postgres"])
def test_every_column_list_of_the_statements_is_expanded(store: str) -> None:
    package = f"treadle.stores.{store}"
    names = [entry.name for entry in files(package).iterdir() if entry.name.endswith(".sql")]
    for folder in ("commit", "connection"):
        names += [f"{folder}/{entry.name}" for entry in files(package).joinpath(folder).iterdir() if entry.name.endswith(".sql")]
    assert len(names) > 15
    for name in names:
        for statement, text in load_statements(package, name).items():
            assert "{" not in text or name == "namespaces.sql", (name, statement)  # written for any table; see rules/namespaces.py
