"""Namespaces as a whole: their names, and all rows of one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping

from treadle.kernel.store.database import reads
from treadle.kernel.store.transfer import NamespaceImport, StoredRow
from treadle.model.names import QueueKey
from treadle.stores.rules.namespaces import columns_of, reading_statements, to_common
from treadle.stores.shared import NamespacePort, TableRow, list_queues
from treadle.stores.sqlite.database import SqliteDatabase, SqliteSession
from treadle.stores.statements import load_statements

_SQL = load_statements(__package__, "namespaces.sql")
_READ = reading_statements(_SQL["read"], ":namespace")


class SqliteNamespaces(NamespacePort):
    """The `NamespaceStore` of SQLite."""

    _database: SqliteDatabase

    @reads
    async def export_rows(self, session: SqliteSession, namespace: str, receive: Callable[[str, StoredRow], None]) -> None:
        async for table, row in self._read(session, await list_queues(session), namespace):
            receive(table, row)

    async def import_rows(self, incoming: NamespaceImport) -> None:
        await super().import_rows(incoming)
        self._database.queues = await self._database.read(list_queues)

    async def _read(
        self, session: SqliteSession, queue_ids: Mapping[QueueKey, int], namespace: str, shift: int = 0
    ) -> AsyncIterator[TableRow]:
        queues = {queue_id: queue for queue, queue_id in queue_ids.items()}
        for table, statement in _READ:
            cursor = session.connection.execute(statement, {"namespace": namespace})
            names: list[str] = []
            for values in cursor:
                names = names or [column[0] for column in cursor.get_description()]
                yield table.name, to_common(table, dict(zip(names, values, strict=True)), queues, shift)

    async def _write(self, session: SqliteSession, table: str, rows: list[StoredRow]) -> None:
        names = columns_of(table, rows)
        statement = _SQL["write_queues" if table == "queues" else "write"].replace("{table}", table)
        statement = statement.replace("{columns}", ", ".join(f'"{name}"' for name in names))
        session.connection.executemany(statement.replace("{values}", ", ".join(f":{name}" for name in names)), rows)
        if table == "runs":
            session.connection.executemany(_SQL["index_errors"], [{"id": row["id"]} for row in rows])
