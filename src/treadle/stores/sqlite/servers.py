"""Servers, and the lease connection through which they renew leases from a thread of their own."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from treadle.kernel.store.operator_ports import LeaseConnection
from treadle.kernel.store.queries import Membership, Renewal, Sighting
from treadle.model.tasks import Claim, Server
from treadle.stores import leases
from treadle.stores.rules.encoding import server_of
from treadle.stores.shared import ServerPort
from treadle.stores.sqlite.connection.clocks import ClockWatch
from treadle.stores.sqlite.connection.connect import writing
from treadle.stores.sqlite.database import SqliteDatabase, SqliteSession, complete

T = TypeVar("T")


class SqliteServers(ServerPort):
    """The `ServerStore` of SQLite."""

    _database: SqliteDatabase

    def lease_connection(self) -> LeaseConnection:
        return SqliteLeaseConnection(self._database)

    async def acquire_liveness_lock(self, server_id: str) -> None:
        """Do nothing: a file has no sessions."""

    async def release_liveness_lock(self, server_id: str) -> None:
        """Do nothing."""

    async def list_sightings(self) -> list[Sighting]:
        return [Sighting(*row) for row in await self._database.fetch("list_sightings")]


class SqliteLeaseConnection:
    """A `LeaseConnection`: the writing thread runs its blocking calls in turn, so no event loop can delay them."""

    def __init__(self, database: SqliteDatabase) -> None:
        self._database = database
        self._watch = None if database.shared is None else ClockWatch(database.clock, database.shared)
        """Compares the clocks of the processes that share a file."""

    def _run(self, work: Callable[[SqliteSession], Coroutine[Any, Any, T]]) -> T:
        return self._database.writer.call_blocking(lambda connection: complete(work(self._database.session(connection))))

    def renew(self, renewals: Sequence[Renewal], lease_for: int) -> set[str]:
        return self._run(lambda session: _renew(session, renewals, lease_for)) if renewals else set()

    def held(self, claims: Sequence[Claim]) -> set[str]:
        return self._run(lambda session: leases.held(session, claims))

    def beat(self, server: Server) -> Membership:
        return self._run(lambda session: self._beat(session, server))

    async def _beat(self, session: SqliteSession, server: Server) -> Membership:
        with writing(session.connection):
            membership = await leases.beat(session, server)
        if self._watch is None:
            return membership
        servers = [server_of(row) for row in await session.fetch_as(dict, "list_servers", namespace=None)]
        if (difference := self._watch.look(server.id, servers)) is not None:
            other_id, error = difference
            order = [row[0] for row in await session.fetch("list_by_arrival")]
            if order.index(other_id) < order.index(server.id):  # the process that came later may not write any more
                self._database.writer.fuse.refuse(error)
            raise error
        return membership

    def now(self) -> int:
        return self._database.now()

    def close(self) -> None:
        """Do nothing: the connection belongs to the store."""


async def _renew(session: SqliteSession, renewals: Sequence[Renewal], lease_for: int) -> set[str]:
    with writing(session.connection):
        return set(await leases.extend(session, "", renewals, lease_for))
