"""Servers, and the lease connection through which they renew leases from a thread and event loop of their own."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import asyncpg

from treadle.kernel.store.queries import Membership, Renewal, Sighting
from treadle.model.errors import NotOpen, StoreUnavailable
from treadle.model.tasks import Claim, Server
from treadle.model.text import safe_logger
from treadle.stores import leases
from treadle.stores.postgres.connection.connect import HOT, Connector, PostgresConnection, close_connection
from treadle.stores.postgres.connection.errors import translated
from treadle.stores.postgres.connection.signals import Listener
from treadle.stores.postgres.database import PostgresDatabase, PostgresSession
from treadle.stores.postgres.tasks import read_clock
from treadle.stores.shared import ServerPort
from treadle.stores.statements import load_statements

_SQL = load_statements(__package__, "servers.sql")
_log = safe_logger("treadle.stores.postgres")

SETTLED_AFTER = 5.0
"""Seconds after which a new session may be used to judge the sessions of others. When the database crashes it ends them all, and
their processes need some time to connect again."""


class LivenessLocks:
    """The liveness locks of the servers of this process: advisory locks, which the database releases with the session.

    The lock is held by the connection that listens for signals. It is released when the process dies, even if the process had no
    time to report its end; when its machine vanishes, TCP keepalives end the connection. Behind PgBouncer without a `direct_url`
    there is no such connection, so nothing is locked and no server is declared dead from its session.
    """

    def __init__(self, listener: Listener, schema: str) -> None:
        self._listener, self._schema = listener, schema
        self._ids: set[str] = set()
        self._locked: set[str] = set()
        """Servers that hold their lock in the present session."""
        listener.on_open = self._open

    async def blocked_by(self, server_id: str) -> None:
        """Hold the lock of the server, now and after every reconnect."""
        self._ids.add(server_id)
        await self._listener.start()
        await self._listener.use(lambda connection, _: self._acquire(connection, server_id))

    async def release(self, server_id: str) -> None:
        """Release the lock of the server."""
        self._ids.discard(server_id)
        if server_id in self._locked:
            self._locked.discard(server_id)
            await self._listener.use(lambda connection, _: connection.execute(_SQL["unlock"], self._schema, server_id))

    async def look(self) -> list[asyncpg.Record] | None:
        """Return the sightings, with sessions if this one has lasted long enough; None without a session."""

        async def look(connection: PostgresConnection, age: float) -> list[asyncpg.Record]:
            judges = bool(self._locked) and age >= SETTLED_AFTER
            return await connection.fetch(_SQL["list_sightings"], judges, self._schema)

        return await self._listener.use(look)

    async def _open(self, connection: PostgresConnection) -> None:
        self._locked.clear()
        for server_id in sorted(self._ids):
            await self._acquire(connection, server_id)

    async def _acquire(self, connection: PostgresConnection, server_id: str) -> None:
        """Take the lock, then record it: a recorded session whose lock nobody holds has ended."""
        try:
            if server_id not in self._locked:
                await connection.execute(_SQL["lock"], self._schema, server_id)
                self._locked.add(server_id)
            await connection.execute(_SQL["record_session"], server_id)
        except asyncpg.PostgresError as error:
            if connection.is_closed():
                raise
            _log.warning("Other workers learn of this worker's death only when its leases expire: %s", error)


_TIMEOUT = 5.0
"""Seconds for an answer: the worker must learn that a lease cannot be renewed while the lease still runs."""

T = TypeVar("T")


class PostgresServers(ServerPort):
    """The `ServerStore` of PostgreSQL."""

    _database: PostgresDatabase

    def lease_connection(self) -> PostgresLeaseConnection:
        return PostgresLeaseConnection(self._database.connector)

    async def acquire_liveness_lock(self, server_id: str) -> None:
        await self._liveness_locks().blocked_by(server_id)

    async def release_liveness_lock(self, server_id: str) -> None:
        await self._liveness_locks().release(server_id)

    async def list_sightings(self) -> list[Sighting]:
        if (rows := await self._liveness_locks().look()) is None:
            async with self._database.borrow() as connection:
                rows = await connection.fetch(_SQL["list_sightings"], False, self._database.address.schema)
        return [Sighting(*row) for row in rows]

    def _liveness_locks(self) -> LivenessLocks:
        if self._database.liveness_locks is None:
            raise NotOpen
        return self._database.liveness_locks


class PostgresLeaseConnection:
    """A `LeaseConnection` that connects when first used, and again after an error."""

    def __init__(self, connector: Connector) -> None:
        self._connector = connector
        self._loop: asyncio.AbstractEventLoop | None = None
        self._connection: PostgresConnection | None = None
        self._closed = False

    def renew(self, renewals: Sequence[Renewal], lease_for: int) -> set[str]:
        channel = self._connector.address.channel
        return set(self._run(lambda session: leases.extend(session, channel, renewals, lease_for))) if renewals else set()

    def held(self, claims: Sequence[Claim]) -> set[str]:
        return self._run(lambda session: leases.held(session, claims))

    def beat(self, server: Server) -> Membership:
        return self._run(lambda session: leases.beat(session, server))

    def now(self) -> int:
        return self._run(lambda session: read_clock(session.connection))

    def close(self) -> None:
        """Close the connection and the loop; idempotent."""
        self._closed = True
        loop, self._loop = self._loop, None
        if loop is not None:
            try:
                loop.run_until_complete(self._drop())
            finally:
                loop.close()

    def _run(self, work: Callable[[PostgresSession], Awaitable[T]]) -> T:
        if self._closed:
            raise StoreUnavailable("This lease connection has been closed.")
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
        return self._loop.run_until_complete(self._work(work))

    async def _work(self, work: Callable[[PostgresSession], Awaitable[T]]) -> T:
        """Run the work, once more on a new connection if the old one was lost meanwhile: all work here is repeatable."""
        with translated(self._connector.address.shown):
            if self._connection is not None:
                try:
                    return await self._try(self._connection, work)
                except (OSError, asyncpg.InterfaceError, asyncpg.PostgresConnectionError, asyncpg.AdminShutdownError):
                    await self._drop()
            self._connection = await self._connector.connect(HOT, timeout=_TIMEOUT)
            try:
                return await self._try(self._connection, work)
            except BaseException:
                await self._drop()
                raise

    async def _try(self, connection: PostgresConnection, work: Callable[[PostgresSession], Awaitable[T]]) -> T:
        async with self._connector.session(connection, HOT):
            return await work(PostgresSession(connection))

    async def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await close_connection(connection)
