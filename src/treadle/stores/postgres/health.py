"""How the database is doing: sizes, dead rows, old snapshots, what is overdue, settings that matter."""

from __future__ import annotations

import asyncpg

from treadle.kernel.store.queries import Health, TableHealth
from treadle.stores.postgres.connect import PACKAGE, Connection
from treadle.stores.statements import load_statements

_SQL = load_statements(PACKAGE, "health.sql")


async def health(connection: Connection) -> Health:
    """What the server tells this user."""
    tables = [TableHealth(*row) for row in await connection.fetch(_SQL["list_tables"])]
    snapshot = await connection.fetchrow(_SQL["find_oldest_snapshot"])
    row = await connection.fetchrow(_SQL["find_settings"])
    assert row is not None
    settings = dict(row)
    size, server = settings.pop("bytes"), settings.pop("server_version")
    return Health(
        tables=tuple(tables),
        overdue_for=await overdue_for(connection),
        versions={"postgresql": server, "asyncpg": asyncpg.__version__},
        settings=settings,
        bytes=size,
        oldest_snapshot_for=None if snapshot is None else max(snapshot[1] or 0, 0),
        snapshot_by=None if snapshot is None else snapshot[0],
    )


async def overdue_for(connection: Connection) -> int:
    """For how many milliseconds the first due `wake_at` has been due."""
    overdue = await connection.fetchval(_SQL["find_overdue"])
    return max(overdue or 0, 0)
