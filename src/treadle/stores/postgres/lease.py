"""The way to keep leases from a thread of its own: a connection and an event loop that nobody else can block."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import asyncpg
import msgspec

from treadle.kernel.store.queries import Extension, Renewal, Touch
from treadle.model.errors import StoreUnavailable
from treadle.model.tasks import Claim, Server
from treadle.stores.postgres.connect import HOT, PACKAGE, Connection, Connector, close_connection
from treadle.stores.postgres.problems import translated
from treadle.stores.postgres.reads import server_of
from treadle.stores.statements import load_statements

_SQL = load_statements(PACKAGE, "lease.sql")

_TIMEOUT = 5.0
"""Seconds for an answer: a lease that cannot be kept must be known to be lost while it still runs."""

T = TypeVar("T")


class PostgresLeaseLine:
    """A `LeaseConnection`; connects when first used, and again after an error."""

    def __init__(self, connector: Connector) -> None:
        self._connector = connector
        self._loop: asyncio.AbstractEventLoop | None = None
        self._connection: Connection | None = None
        self._closed = False

    def renew(self, renewals: Sequence[Renewal], lease_for: int) -> set[str]:
        """Extend the claims that are held; see the port."""
        return self._run(lambda connection: renew(connection, renewals, lease_for)) if renewals else set()

    def held(self, claims: Sequence[Claim]) -> set[str]:
        """The ids of the tasks whose claim is as given."""
        return self._run(lambda connection: held(connection, claims)) if claims else set()

    def beat(self, server: Server) -> None:
        """Insert or update the server's row."""
        self._run(lambda connection: beat(connection, server))

    def now(self) -> int:
        """The database's clock."""
        return int(self._run(lambda connection: connection.fetchval(_SQL["now"])))

    def close(self) -> None:
        """Give the connection and the loop back; idempotent."""
        self._closed = True
        loop, self._loop = self._loop, None
        if loop is not None:
            try:
                loop.run_until_complete(self._drop())
            finally:
                loop.close()

    def _run(self, work: Callable[[Connection], Awaitable[T]]) -> T:
        if self._closed:
            raise StoreUnavailable("This way to the store has been closed.")
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
        return self._loop.run_until_complete(self._work(work))

    async def _work(self, work: Callable[[Connection], Awaitable[T]]) -> T:
        """Do it, once more on a new connection if that of last time has gone meanwhile: all that is done here may be done twice."""
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

    async def _try(self, connection: Connection, work: Callable[[Connection], Awaitable[T]]) -> T:
        async with self._connector.session(connection, HOT):
            return await work(connection)

    async def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await close_connection(connection)


async def renew(connection: Connection, renewals: Sequence[Renewal], lease_for: int) -> set[str]:
    """Extend the claims that are held, in the order of their ids; the ids of those tasks."""
    ordered = sorted(renewals, key=lambda renewal: renewal.claim.task_id)
    claims = [renewal.claim for renewal in ordered]
    rows = await connection.fetch(
        _SQL["renew"],
        [claim.task_id for claim in claims],
        [claim.version for claim in claims],
        [claim.owner_id for claim in claims],
        lease_for,
        [renewal.progressed for renewal in ordered],
        [renewal.progress for renewal in ordered],
    )
    return {row[0] for row in rows}


async def extend(connection: Connection, renewals: Sequence[Renewal], lease_for: int) -> dict[str, Extension]:
    """Extend the claims that are held, within an attempt's longest time; until when."""
    ordered = sorted(renewals, key=lambda renewal: renewal.claim.task_id)
    claims = [renewal.claim for renewal in ordered]
    rows = await connection.fetch(
        _SQL["extend"],
        [claim.task_id for claim in claims],
        [claim.version for claim in claims],
        [claim.owner_id for claim in claims],
        lease_for,
        [renewal.progressed for renewal in ordered],
        [renewal.progress for renewal in ordered],
    )
    return {row[0]: Extension(row[1], row[2]) for row in rows}


async def touch_servers(connection: Connection, touches: Sequence[Touch]) -> list[Server]:
    """Note that servers are alive, in the order of their ids; the rows of those that have not stopped."""
    ordered = sorted(touches, key=lambda touch: touch.server_id)
    rows = await connection.fetch(
        _SQL["touch_servers"],
        [touch.server_id for touch in ordered],
        [touch.state for touch in ordered],
        [touch.handled for touch in ordered],
        [touch.failed for touch in ordered],
        [touch.running for touch in ordered],
    )
    return [server_of(row) for row in rows]


async def held(connection: Connection, claims: Sequence[Claim]) -> set[str]:
    """The ids of the tasks whose claim is as given."""
    rows = await connection.fetch(
        _SQL["held"],
        [claim.task_id for claim in claims],
        [claim.version for claim in claims],
        [claim.owner_id for claim in claims],
    )
    return {row[0] for row in rows}


async def beat(connection: Connection, server: Server) -> None:
    """Insert the server's row, or update it; its heartbeat is now."""
    await connection.execute(
        _SQL["beat"],
        server.id,
        server.name,
        server.host,
        server.pid,
        server.version,
        server.state,
        msgspec.json.encode(server.handlers).decode(),
        msgspec.json.encode(server.task_lists).decode(),
        server.concurrency,
        server.heartbeat_every_for,
        server.started_at,
        server.handled,
        server.failed,
        server.running,
        server.server_group,
        server.service_name,
        msgspec.json.encode(server.topics).decode(),
        msgspec.json.encode(server.counts).decode(),
        server.error,
    )
