"""All rows of a namespace, to move it to another store."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from treadle.kernel.store.namespace_tables import BY_NAME, NamespaceTable
from treadle.kernel.store.ports.namespaces import RowKey, RowPage, StoredRow
from treadle.stores.postgres.connection.connect import Connection
from treadle.stores.postgres.parts import Part, reads
from treadle.stores.rules.namespaces import columns_of, first_key, statements_of
from treadle.stores.statements import load_statements

_SQL = load_statements(__package__, "namespaces.sql")


def _after(table: NamespaceTable) -> str:
    return ", ".join(f"${number}::{kind}" for number, (_, kind) in enumerate(table.key, 3))


_FORMS = statements_of({name: _SQL[name] for name in ("read", "page_end", "remove", "write")}, "$1", _after)


class Namespaces(Part):
    """The `NamespaceStore` of PostgreSQL."""

    @reads
    async def list_namespaces(self, connection: Connection) -> list[str]:
        return [row[0] for row in await connection.fetch(_SQL["list_namespaces"])]

    @reads
    async def count_held(self, connection: Connection, namespace: str) -> int:
        return int(await connection.fetchval(_SQL["count_held"], namespace))

    @reads
    async def read_rows(self, connection: Connection, namespace: str, table: str, after: RowKey | None, limit: int) -> RowPage:
        key = after or first_key(BY_NAME[table])
        rows = await connection.fetch(_FORMS["read", table], namespace, limit, *key)
        return RowPage([msgspec.json.decode(row[0]) for row in rows], await _page_end(connection, namespace, table, key, limit))

    @reads
    async def write_rows(self, connection: Connection, table: str, rows: Sequence[StoredRow]) -> None:
        if rows:
            columns = ", ".join(f'"{name}"' for name in columns_of(rows))
            statement = _SQL["write_lanes"] if table == "lanes" else _FORMS["write", table]
            async with connection.transaction():
                await connection.execute(_SQL["pass_fences"])
                await connection.execute(statement.replace("{columns}", columns), msgspec.json.encode(rows).decode())

    @reads
    async def remove_rows(
        self, connection: Connection, namespace: str, table: str, after: RowKey | None, limit: int
    ) -> RowKey | None:
        key = after or first_key(BY_NAME[table])
        following = await _page_end(connection, namespace, table, key, limit)
        async with connection.transaction():
            await connection.execute(_SQL["pass_fences"])
            await connection.execute(_FORMS["remove", table], namespace, limit, *key)
        return following

    @reads
    async def reserve_seqs(self, connection: Connection, count: int) -> int:
        return int(await connection.fetchval(_SQL["reserve_seqs"], count))

    @reads
    async def fence_namespace(self, connection: Connection, namespace: str, moved_to: str) -> None:
        async with connection.transaction():
            await connection.execute(_SQL["begin_fencing"])
            await connection.execute(_SQL["fence"], namespace, moved_to)

    @reads
    async def unfence_namespace(self, connection: Connection, namespace: str) -> None:
        async with connection.transaction():
            await connection.execute(_SQL["begin_fencing"])
            await connection.execute(_SQL["unfence"], namespace)


async def _page_end(connection: Connection, namespace: str, table: str, key: RowKey, limit: int) -> RowKey | None:
    found = await connection.fetchrow(_FORMS["page_end", table], namespace, limit, *key)
    return None if found is None else tuple(found)
