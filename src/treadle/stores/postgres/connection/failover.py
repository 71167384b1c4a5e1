"""Choose the server of a replicated database that may be used: it takes writes, and no failover has overtaken it.

PostgreSQL gives a standby that it promotes a new, higher timeline, and all standbys that follow it too. A primary that was cut
off and comes back still has its old timeline: a process that has seen the new one refuses the old primary. The highest timeline
of each database cluster is in the memory of the process. It is not in the database: the old primary would not have it. A new
process therefore asks all servers of the URL, also standbys, and refuses one that takes writes if another one is further.

Known weaknesses: a process that can only reach the old primary uses it; so does one whose URL has a single host. A synchronous
standby (`synchronous_standby_names`) closes that gap: an old primary without standbys then acknowledges nothing, not even a claim.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from treadle.model.clock import Clock
from treadle.model.errors import StoreUnavailable, TreadleError
from treadle.model.text import safe_logger
from treadle.stores.postgres.connection.address import DatabaseServer
from treadle.stores.postgres.connection.errors import meaning, translated

if TYPE_CHECKING:
    from treadle.stores.postgres.connection.connect import Connector, PostgresConnection

HEAD_START = 1.0
"""Seconds for the server that was the primary before, until the others are asked too."""

GRACE = 1.0
"""Seconds for the other servers to object once one that may be used has answered."""

_newest: dict[int, int] = {}
"""The highest timeline that this process has seen, by system identifier."""


@dataclass(frozen=True, slots=True)
class Standing:
    """The state of a server as it reports it; without the privilege to read it, no cluster and no timeline."""

    standby: bool
    read_only: bool
    started_at: object
    """The start of the server process: two addresses of one server report the same."""
    system_id: int | None = None
    timeline: int | None = None

    def note(self) -> None:
        """Remember the timeline if it is the highest so far."""
        if self.system_id is not None and self.timeline is not None:
            _newest[self.system_id] = max(self.timeline, _newest.get(self.system_id, 0))

    @property
    def overtaken(self) -> bool:
        """Whether this process has seen a higher timeline of the same cluster."""
        return self.system_id is not None and (self.timeline or 0) < _newest.get(self.system_id, 0)

    def objection(self, target: str) -> str | None:
        """Return the reason not to use the server for that target; None if it may be used."""
        if target == "any":
            return None
        if self.standby:
            return "is a standby"
        if self.overtaken:
            return (
                f"was overtaken by a failover: it is on timeline {self.timeline}, and timeline "
                f"{_newest[self.system_id or 0]} exists. Stop it and rebuild it as a standby (pg_rewind). "
                "If you went back to it on purpose, restart this process"
            )
        return "takes no writes (default_transaction_read_only)" if target == "read-write" and self.read_only else None


class SplitBrain(StoreUnavailable):
    """Several servers take writes, and no failover orders them."""


class ServerSearch:
    """One search for the server to use, among those of a URL."""

    def __init__(
        self,
        shown: str,
        servers: Sequence[DatabaseServer],
        target: str,
        connect: Callable[[DatabaseServer], Awaitable[PostgresConnection]],
    ) -> None:
        self._shown, self._servers, self._target, self._connect = shown, servers, target, connect
        self._tasks: dict[DatabaseServer, asyncio.Task[PostgresConnection]] = {}

    async def find(self, first: DatabaseServer | None) -> tuple[DatabaseServer, PostgresConnection]:
        """Connect to the server to use; raise `StoreUnavailable` with the objection to each if there is none.

        `first` gets a head start; the others are asked only if it may not be used.
        """
        connection: PostgresConnection | None = None
        if len(self._servers) == 1:
            return self._servers[0], await self._only()
        try:
            if first is not None:
                self._ask(first)
                await asyncio.wait(self._pending(), timeout=HEAD_START)
                if first in self._answers():
                    connection = self._answers()[first]
                    return first, connection
            for server in self._servers:
                self._ask(server)
            while self._pending() and not self._answers():
                await asyncio.wait(self._pending(), return_when=asyncio.FIRST_COMPLETED)
            if self._pending():
                await asyncio.wait(self._pending(), timeout=GRACE)
            server, connection = self._choose()
            return server, connection
        finally:
            await self._discard(connection)

    async def _only(self) -> PostgresConnection:
        """Connect to the only server; errors of the driver are the caller's to translate."""
        connection = await self._connect(self._servers[0])
        connection.standing.note()
        if (objection := connection.standing.objection(self._target)) is not None:
            connection.terminate()
            raise StoreUnavailable(f"{self._shown} {objection}.")
        return connection

    def _ask(self, server: DatabaseServer) -> None:
        if server not in self._tasks:
            self._tasks[server] = asyncio.ensure_future(self._connect(server))

    def _pending(self) -> list[asyncio.Task[PostgresConnection]]:
        return [task for task in self._tasks.values() if not task.done()]

    def _connected(self) -> dict[DatabaseServer, PostgresConnection]:
        done = {server: task for server, task in self._tasks.items() if task.done()}
        return {server: task.result() for server, task in done.items() if not task.cancelled() and task.exception() is None}

    def _answers(self) -> dict[DatabaseServer, PostgresConnection]:
        """The connections to servers that may be used, as far as is known by now."""
        connected = self._connected()
        for connection in connected.values():
            connection.standing.note()
        return {
            server: connection for server, connection in connected.items() if connection.standing.objection(self._target) is None
        }

    def _choose(self) -> tuple[DatabaseServer, PostgresConnection]:
        answers = self._answers()
        if not answers:
            raise self._none()
        if (
            self._target != "any"
            and len({(connection.standing.system_id, connection.standing.started_at) for connection in answers.values()}) > 1
        ):
            raise SplitBrain(
                f"{self._shown}: several servers take writes and no failover orders them ({', '.join(s.name for s in answers)}). "
                "Treadle uses neither. Stop the wrong one, and rebuild it as a standby of the other."
            )
        return next(iter(answers.items()))

    def _none(self) -> StoreUnavailable:
        """The error with the objection to each server; permanent only if all of them reject the user or the database."""
        reasons, rejected = [], True
        for server, task in self._tasks.items():
            if not task.done():
                reasons.append(f"{server.name} does not answer")
                rejected = False
            elif (error := task.exception()) is not None:
                meant = meaning(error, server.name) if isinstance(error, Exception) else None
                reasons.append(str(meant or f"{server.name}: {type(error).__name__}").rstrip("."))
                rejected &= isinstance(meant, StoreUnavailable) and meant.rejected
            else:
                reasons.append(f"{server.name} {task.result().standing.objection(self._target)}")
                rejected = False
        return StoreUnavailable(f"No server of {self._shown} can be used now: {'; '.join(reasons)}.", rejected=rejected)

    async def _discard(self, chosen: PostgresConnection | None) -> None:
        """Close all connections but this one, including those still being opened."""
        pending = self._pending()
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
        for connection in self._connected().values():
            if connection is not chosen:
                connection.terminate()


_log = safe_logger("treadle.stores.postgres")

LOOK_EVERY = 3.0
"""Seconds between two looks at all servers: a primary that was cut off is abandoned that long after its successor is up."""


async def watch_timelines(connector: Connector, clock: Clock) -> None:
    """Ask all servers for their timelines until canceled; log each new problem once."""
    problem = ""
    while True:
        await clock.sleep(LOOK_EVERY)
        try:
            with translated(connector.address.shown):
                await connector.look_around()
            problem = ""
        except TreadleError as error:
            if str(error) != problem:
                problem = str(error)
                _log.warning("%s", error)
