"""Namespaces as a whole: their names, and all rows of one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping

import msgspec

from treadle.kernel.store.database import uses
from treadle.kernel.store.transfer import BATCH, StoredRow
from treadle.model.names import QueueKey
from treadle.stores.postgres.database import PostgresSession
from treadle.stores.rules.namespaces import columns_of, reading_statements, to_common
from treadle.stores.shared import NamespacePort, TableRow, list_queues
from treadle.stores.statements import load_statements

_SQL = load_statements(__package__, "namespaces.sql")
_READ = reading_statements(_SQL["read"], "$1")
_READ_TIMEOUT = 3600.0
"""Seconds that reading a part of a table may take."""


class PostgresNamespaces(NamespacePort):
    """The `NamespaceStore` of PostgreSQL."""

    @uses
    async def export_rows(self, session: PostgresSession, namespace: str, receive: Callable[[str, StoredRow], None]) -> None:
        async with session.connection.transaction(isolation="repeatable_read", readonly=True):
            async for table, row in self._read(session, await list_queues(session), namespace):
                receive(table, row)

    async def _read(
        self, session: PostgresSession, queue_ids: Mapping[QueueKey, int], namespace: str, shift: int = 0
    ) -> AsyncIterator[TableRow]:
        await session.connection.execute(_SQL["read_patiently"])
        queues = {queue_id: queue for queue, queue_id in queue_ids.items()}
        for table, statement in _READ:
            async for record in session.connection.cursor(statement, namespace, prefetch=BATCH, timeout=_READ_TIMEOUT):
                yield table.name, to_common(table, msgspec.json.decode(record[0]), queues, shift)

    async def _write(self, session: PostgresSession, table: str, rows: list[StoredRow]) -> None:
        columns = ", ".join(f'"{name}"' for name in columns_of(table, rows))
        statement = _SQL["write_queues" if table == "queues" else "write"].replace("{table}", table)
        await session.connection.execute(statement.replace("{columns}", columns), msgspec.json.encode(rows).decode())
