"""Namespaces as a whole: their names, and all rows of one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import apsw

from treadle.kernel.store.transfer import NamespaceImport, StoredRow
from treadle.model.names import Lane
from treadle.stores.rules.namespaces import columns_of, from_common, reading_statements, to_common
from treadle.stores.shared import Port, reads, writes
from treadle.stores.sqlite.connection.connect import read_value
from treadle.stores.sqlite.database import Database, SqliteSession
from treadle.stores.sqlite.tasks import list_lanes
from treadle.stores.statements import load_statements

_SQL = load_statements(__package__, "namespaces.sql")
LaneIds = Mapping[Lane, int]
_READ = reading_statements(_SQL["read"], ":namespace")


class Namespaces(Port):
    """The `NamespaceStore` of SQLite."""

    _database: Database

    async def list_names(self) -> list[str]:
        return [row[0] for row in await self._database.fetch("list_namespaces")]

    @reads
    async def export_rows(self, session: SqliteSession, namespace: str, receive: Callable[[str, StoredRow], None]) -> None:
        for table, row in _read(session.connection, await list_lanes(session), namespace):
            receive(table, row)

    @writes
    async def import_rows(self, session: SqliteSession, incoming: NamespaceImport) -> None:
        connection, lanes = session.connection, await list_lanes(session)
        namespace, header = incoming.namespace, incoming.header
        for table, row in _read(connection, lanes, namespace):
            incoming.refuse_row(table, row)
        count = header.last_seq - header.first_seq + 1
        shift = int(read_value(connection, _SQL["reserve_seqs"], {"count": count})) + 1 - header.first_seq
        for table, batch in incoming.batches():
            _write(connection, table, from_common(batch, namespace, lanes, shift))
            if table == "lanes":
                lanes = await list_lanes(session)
        for table, row in _read(connection, lanes, namespace, shift):
            incoming.check_row(table, row)
        incoming.finish()
        self._database.lanes = lanes


def _read(
    connection: apsw.Connection, lane_ids: Mapping[Lane, int], namespace: str, shift: int = 0
) -> Iterator[tuple[str, StoredRow]]:
    lanes = {lane_id: lane for lane, lane_id in lane_ids.items()}
    for table, statement in _READ:
        cursor = connection.execute(statement, {"namespace": namespace})
        names: list[str] = []
        for values in cursor:
            names = names or [column[0] for column in cursor.get_description()]
            yield table.name, to_common(table, dict(zip(names, values, strict=True)), lanes, shift)


def _write(connection: apsw.Connection, table: str, rows: list[dict[str, Any]]) -> None:
    names = columns_of(table, rows)
    statement = _SQL["write_lanes" if table == "lanes" else "write"].replace("{table}", table)
    statement = statement.replace("{columns}", ", ".join(f'"{name}"' for name in names))
    connection.executemany(statement.replace("{values}", ", ".join(f":{name}" for name in names)), rows)
    if table == "runs":
        connection.executemany(_SQL["index_errors"], [{"id": row["id"]} for row in rows])
