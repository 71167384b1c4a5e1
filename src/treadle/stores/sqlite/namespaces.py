"""Namespaces as a whole: their names, and all rows of one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import apsw

from treadle.kernel.store.transfer import NamespaceImport, StoredRow
from treadle.stores.rules.namespaces import columns_of, from_common, reading_statements, to_common
from treadle.stores.sqlite.connection.connect import read_value
from treadle.stores.sqlite.database import Part, reads, writes
from treadle.stores.sqlite.limits import list_lanes
from treadle.stores.statements import load_statements

_SQL = load_statements(__package__, "namespaces.sql")
_READ = reading_statements(_SQL["read"], ":namespace")


class Namespaces(Part):
    """The `NamespaceStore` of SQLite."""

    @reads
    def list_names(self, connection: apsw.Connection) -> list[str]:
        return [str(row[0]) for row in connection.execute(_SQL["list_namespaces"])]

    @reads
    def export_rows(self, connection: apsw.Connection, namespace: str, receive: Callable[[str, StoredRow], None]) -> None:
        with connection:  # one snapshot
            for table, row in _read(connection, namespace):
                receive(table, row)

    @writes
    def import_rows(self, connection: apsw.Connection, incoming: NamespaceImport) -> None:
        namespace, header = incoming.namespace, incoming.header
        for table, row in _read(connection, namespace):
            incoming.refuse_row(table, row)
        count = header.last_seq - header.first_seq + 1
        shift = int(read_value(connection, _SQL["reserve_seqs"], {"count": count})) + 1 - header.first_seq
        for table, batch in incoming.batches():
            lane_ids = {lane: lane_id for lane_id, lane in list_lanes(connection).items()}
            rows = from_common(batch, namespace, lane_ids, shift)
            _write(connection, table, rows)
        for table, row in _read(connection, namespace, shift):
            incoming.check_row(table, row)
        incoming.finish()
        self._database.lanes = {lane: lane_id for lane_id, lane in list_lanes(connection).items()}


def _read(connection: apsw.Connection, namespace: str, shift: int = 0) -> Iterator[tuple[str, StoredRow]]:
    lanes = list_lanes(connection)
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
