"""Facts about the database for operators."""

from __future__ import annotations

from typing import TYPE_CHECKING

import asyncpg

from treadle.api.wire import Instant
from treadle.kernel.store.database import Port, uses
from treadle.model.errors import Unsupported
from treadle.stores.postgres.connection.connect import PostgresConnection
from treadle.stores.postgres.connection.schema import read_version
from treadle.stores.postgres.database import PostgresDatabase, PostgresSession
from treadle.stores.statements import load_statements

if TYPE_CHECKING:
    from treadle.api.store import StoreHealth

_SQL = load_statements(__package__, "health.sql")


class PostgresHealth(Port):
    """The `HealthStore` of PostgreSQL."""

    _database: PostgresDatabase

    @uses
    async def describe(self, session: PostgresSession) -> dict[str, object]:
        connection = session.connection
        version = await read_version(connection)
        row = await connection.fetchrow(_SQL["describe"])
        described = {
            "kind": "postgresql",
            "url": self._database.url,
            "schema": self._database.address.schema,
            "schema_version": version,
        }
        return described | dict(row or {})

    @uses
    async def overdue_for(self, session: PostgresSession) -> int:
        return await _overdue_for(session.connection)

    @uses
    async def check(self, session: PostgresSession) -> StoreHealth:
        connection = session.connection
        from treadle.api.store import StoreHealth, StoreTable

        tables = [
            StoreTable(name, size, rows, dead_rows, None if vacuumed_at is None else Instant.of(vacuumed_at))
            for name, size, rows, dead_rows, vacuumed_at in await connection.fetch(_SQL["list_tables"])
        ]
        snapshot = await connection.fetchrow(_SQL["find_oldest_snapshot"])
        row = await connection.fetchrow(_SQL["find_settings"])
        assert row is not None
        settings = dict(row) | {"sessions": "on" if self._database.address.has_sessions else "off"}
        size, server = settings.pop("bytes"), settings.pop("server_version")
        return StoreHealth(
            tables=tables,
            overdue_for=await _overdue_for(connection),
            versions={"postgresql": server, "asyncpg": asyncpg.__version__},
            settings=settings,
            bytes=size,
            free_bytes=None,
            wal_bytes=None,
            oldest_snapshot_for=None if snapshot is None else max(snapshot[1] or 0, 0),
            snapshot_by=None if snapshot is None else snapshot[0],
            findings=[],
        )

    @uses
    async def list_damage(self, session: PostgresSession, *, pages: bool = True) -> list[str]:
        connection = session.connection
        count, at = await connection.fetchrow(_SQL["count_checksum_failures"]) or (0, None)
        if not count:
            return []
        return [
            f"PostgreSQL has read {count} damaged pages (checksum failures) in this database, the last on {at}. Look at the "
            "server's log for the tables, check the disk, and restore a backup; `select pg_stat_reset()` clears the count."
        ]

    async def accept_damage(self) -> str | None:
        return None

    async def backup(self, path: str) -> int:
        raise Unsupported(
            f"Back {self._database.url} up with PostgreSQL's own tools: `pg_dump --format=custom "
            f"--schema={self._database.address.schema} --file={path} URL` for this schema (back with pg_restore), "
            "or base backups of the whole server."
        )


async def _overdue_for(connection: PostgresConnection) -> int:
    return max(await connection.fetchval(_SQL["find_overdue"]) or 0, 0)
