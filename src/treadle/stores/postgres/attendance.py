"""Sessions that end with their process: each attended server holds an advisory lock, which the database releases with the session.

The lock is held by the connection that listens for signals. It is released when the process dies, even if the process had no time
to say anything; when its machine vanishes, TCP keepalives end the connection. Behind PgBouncer without a `direct_url` there is no
such connection, so nothing is locked and nobody is judged by its session.
"""

from __future__ import annotations

import asyncpg

from treadle.model.text import safe_logger
from treadle.stores.postgres.connection.connect import Connection
from treadle.stores.postgres.connection.signals import Listener
from treadle.stores.statements import load_statements

_SQL = load_statements(__package__, "servers.sql")
_log = safe_logger("treadle.stores.postgres")

SETTLED_AFTER = 5.0
"""Seconds after which a new session may be used to judge the sessions of others. When the database crashes it ends them all, and
their processes need some time to connect again."""


class Attendance:
    """The attended servers of this process."""

    def __init__(self, listener: Listener, schema: str) -> None:
        self._listener, self._schema = listener, schema
        self._ids: set[str] = set()
        self._locked: set[str] = set()
        """Servers that hold their lock in the present session."""
        listener.on_open = self._open

    async def attend(self, server_id: str) -> None:
        """Hold the lock of the server, now and after every reconnect."""
        self._ids.add(server_id)
        await self._listener.start()
        await self._listener.use(lambda connection, _: self._hold(connection, server_id))

    async def leave(self, server_id: str) -> None:
        """Release the lock of the server."""
        self._ids.discard(server_id)
        if server_id in self._locked:
            self._locked.discard(server_id)
            await self._listener.use(lambda connection, _: connection.execute(_SQL["unlock"], self._schema, server_id))

    async def look(self) -> list[asyncpg.Record] | None:
        """Return the sightings, with sessions if this one has lasted long enough; None without a session."""

        async def look(connection: Connection, age: float) -> list[asyncpg.Record]:
            judges = bool(self._locked) and age >= SETTLED_AFTER
            return await connection.fetch(_SQL["list_sightings"], judges, self._schema)

        return await self._listener.use(look)

    async def _open(self, connection: Connection) -> None:
        self._locked.clear()
        for server_id in sorted(self._ids):
            await self._hold(connection, server_id)

    async def _hold(self, connection: Connection, server_id: str) -> None:
        """Take the lock, then record it: a recorded session whose lock nobody holds has ended."""
        try:
            if server_id not in self._locked:
                await connection.execute(_SQL["lock"], self._schema, server_id)
                self._locked.add(server_id)
            await connection.execute(_SQL["record_session"], server_id)
        except asyncpg.PostgresError as error:
            if connection.is_closed():
                raise
            _log.warning("Other servers learn of this server's death only when its leases expire: %s", error)
