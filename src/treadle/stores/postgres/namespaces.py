"""Namespaces as a whole: their names, and all rows of one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import msgspec

from treadle.kernel.store.transfer import BATCH, NamespaceImport, StoredRow
from treadle.stores.postgres.connection.connect import Connection
from treadle.stores.postgres.database import PostgresSession, list_lanes
from treadle.stores.rules.namespaces import columns_of, from_common, reading_statements, to_common
from treadle.stores.shared import Port, uses
from treadle.stores.statements import load_statements

_SQL = load_statements(__package__, "namespaces.sql")
_READ = reading_statements(_SQL["read"], "$1")
_READ_TIMEOUT = 3600.0
"""Seconds that reading a part of a table may take."""


class Namespaces(Port):
    """The `NamespaceStore` of PostgreSQL."""

    async def list_names(self) -> list[str]:
        return [row[0] for row in await self._database.fetch("list_namespaces")]

    @uses
    async def export_rows(self, session: PostgresSession, namespace: str, receive: Callable[[str, StoredRow], None]) -> None:
        connection = session.connection
        async with connection.transaction(isolation="repeatable_read", readonly=True):
            async for table, row in _read(session, namespace):
                receive(table, row)

    @uses
    async def import_rows(self, session: PostgresSession, incoming: NamespaceImport) -> None:
        connection = session.connection
        namespace, header = incoming.namespace, incoming.header
        async with connection.transaction():
            async for table, row in _read(session, namespace):
                incoming.refuse_row(table, row)
            count = header.last_seq - header.first_seq + 1
            shift = int(await connection.fetchval(_SQL["reserve_seqs"], count)) + 1 - header.first_seq
            for table, batch in incoming.batches():
                lane_ids = {lane: lane_id for lane_id, lane in (await list_lanes(session)).items()}
                await _write(connection, table, from_common(batch, namespace, lane_ids, shift))
            async for table, row in _read(session, namespace, shift):
                incoming.check_row(table, row)
            incoming.finish()


async def _read(session: PostgresSession, namespace: str, shift: int = 0) -> AsyncIterator[tuple[str, StoredRow]]:
    connection = session.connection
    await connection.execute(_SQL["read_patiently"])
    lanes = await list_lanes(session)
    for table, statement in _READ:
        async for record in connection.cursor(statement, namespace, prefetch=BATCH, timeout=_READ_TIMEOUT):
            yield table.name, to_common(table, msgspec.json.decode(record[0]), lanes, shift)


async def _write(connection: Connection, table: str, rows: list[StoredRow]) -> None:
    columns = ", ".join(f'"{name}"' for name in columns_of(table, rows))
    statement = _SQL["write_lanes" if table == "lanes" else "write"].replace("{table}", table)
    await connection.execute(statement.replace("{columns}", columns), msgspec.json.encode(rows).decode())
