"""All rows of a namespace, to move it to another store."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import apsw

from treadle.kernel.store.namespace_tables import BY_NAME, NamespaceTable
from treadle.kernel.store.ports.namespaces import RowKey, RowPage, StoredRow
from treadle.stores.rules.namespaces import columns_of, fences_of, first_key, statements_of
from treadle.stores.sqlite.connection.connect import read_value
from treadle.stores.sqlite.connection.errors import list_moved
from treadle.stores.sqlite.parts import Part, reads, writes
from treadle.stores.statements import load_statements

_SQL = load_statements(__package__, "namespaces.sql")


def _after(table: NamespaceTable) -> str:
    return ", ".join(f":after_{name}" for name, _ in table.key)


_FORMS = statements_of({name: _SQL[name] for name in ("read", "page_end", "remove", "write")}, ":namespace", _after)
_FENCES = fences_of(_SQL["create_fence"], _SQL)
_NO_FENCES = fences_of(_SQL["drop_fence"], _SQL)


class Namespaces(Part):
    """The `NamespaceStore` of SQLite."""

    @reads
    def list_namespaces(self, connection: apsw.Connection) -> list[str]:
        return [str(row[0]) for row in connection.execute(_SQL["list_namespaces"])]

    @reads
    def count_held(self, connection: apsw.Connection, namespace: str) -> int:
        return int(read_value(connection, _SQL["count_held"], {"namespace": namespace}))

    @reads
    def read_rows(self, connection: apsw.Connection, namespace: str, table: str, after: RowKey | None, limit: int) -> RowPage:
        values = _values(namespace, table, after, limit)
        cursor = connection.execute(_FORMS["read", table], values)
        rows: list[Any] = cursor.fetchall()
        names = _columns(connection, table) if rows else ()
        return RowPage([dict(zip(names, row, strict=True)) for row in rows], _page_end(connection, table, values))

    @writes
    def write_rows(self, connection: apsw.Connection, table: str, rows: Sequence[StoredRow]) -> None:
        if not rows:
            return
        names = columns_of(rows)
        statement = _SQL["write_lanes"] if table == "lanes" else _FORMS["write", table]
        statement = statement.replace("{columns}", ", ".join(f'"{name}"' for name in names))
        statement = statement.replace("{values}", ", ".join(f":{name}" for name in names))
        with _passing(connection):
            connection.executemany(statement, rows)
        if table == "runs":
            connection.executemany(_SQL["index_errors"], [{"id": row["id"]} for row in rows])

    @writes
    def remove_rows(
        self, connection: apsw.Connection, namespace: str, table: str, after: RowKey | None, limit: int
    ) -> RowKey | None:
        values = _values(namespace, table, after, limit)
        following = _page_end(connection, table, values)
        with _passing(connection):
            connection.execute(_FORMS["remove", table], values)
        return following

    @writes
    def reserve_seqs(self, connection: apsw.Connection, count: int) -> int:
        return int(read_value(connection, _SQL["reserve_seqs"], {"count": count}))

    @writes
    def fence_namespace(self, connection: apsw.Connection, namespace: str, moved_to: str) -> None:
        connection.execute(_SQL["fence"], {"namespace": namespace, "now": self._clock.now(), "moved_to": moved_to})
        restore_fences(connection)

    @writes
    def unfence_namespace(self, connection: apsw.Connection, namespace: str) -> None:
        connection.execute(_SQL["unfence"], {"namespace": namespace})
        if not list_moved(connection):
            for drop in _NO_FENCES:
                connection.execute(drop)


def restore_fences(connection: apsw.Connection) -> None:
    """Create the triggers of moved namespaces that are missing: there are none without such a namespace."""
    if list_moved(connection):
        for create in _FENCES:
            connection.execute(create)


@contextmanager
def _passing(connection: apsw.Connection) -> Iterator[None]:
    """Let the changes in the block, which is part of a transaction, pass the fences: they are those of a move."""
    connection.execute(_SQL["set_passing"], {"passing": True})
    yield
    connection.execute(_SQL["set_passing"], {"passing": False})


def _values(namespace: str, table: str, after: RowKey | None, limit: int) -> dict[str, Any]:
    known = BY_NAME[table]
    key = {f"after_{name}": value for (name, _), value in zip(known.key, after or first_key(known), strict=True)}
    return {"namespace": namespace, "limit": limit, **key}


def _page_end(connection: apsw.Connection, table: str, values: dict[str, Any]) -> RowKey | None:
    found: Any = next(iter(connection.execute(_FORMS["page_end", table], values)), None)
    return None if found is None else tuple(found)


def _columns(connection: apsw.Connection, table: str) -> list[str]:
    return [str(row[1]) for row in connection.pragma("table_xinfo", table)]
