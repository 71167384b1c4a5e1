"""The ports for servers: their rows, and the connection over which they renew leases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from treadle.kernel.store.ports.clock import StoreClock
from treadle.kernel.store.queries import Renewal, Roll, Sighting, Touch
from treadle.model.tasks import Claim, Server


class LeaseConnection(Protocol):
    """A connection to the store that belongs to one thread, so that a blocked event loop loses no leases.

    Its methods block; only the lease renewer's thread calls them.
    """

    def renew(self, renewals: Sequence[Renewal], lease_for: int) -> set[str]:
        """Extend the held claims to `lease_for` from now, never past the task's deadline or progress deadline.

        One statement for all. Returns the ids of the extended tasks. A missing id is not necessarily lost (its own
        settle may hold the row): call `held` before giving it up (D6). `heartbeat_at` becomes now; for renewals with
        `progressed`, `progress_at` becomes now too and `progress` is stored.
        """

    def held(self, claims: Sequence[Claim]) -> set[str]:
        """Return the ids of the tasks with an unchanged claim (same version, same owner)."""

    def beat(self, server: Server) -> Roll:
        """Insert or update the server's row; `heartbeat_at` becomes now, `started_at` keeps its first value.

        `session` keeps its value, and `evidence` is cleared: a server that beats is alive. Returns the former evidence, and the
        number of other servers that have not ended, missed fewer than `LOST_AFTER` heartbeats, and have a `process` or a
        `session`.
        """

    def now(self) -> int:
        """Return the store's clock, in milliseconds."""

    def close(self) -> None:
        """Release the connection; idempotent."""


class ServerStore(StoreClock, Protocol):
    """Processes that host workers."""

    def lease_connection(self) -> LeaseConnection:
        """Create a lease connection for one thread. May be called from any thread."""

    async def list_servers(self, namespace: str | None = None) -> list[Server]:
        """Return the servers that sent a heartbeat and were not pruned, newest first: those of the namespace, or all.

        A server without a namespace, registered by an older version, counts for every namespace: it may serve any of them.
        """

    async def save_server(self, server: Server) -> None:
        """Insert or update the server's row, as `LeaseConnection.beat` does."""

    async def touch_servers(self, touches: Sequence[Touch]) -> list[Server]:
        """Record heartbeats in one statement; return the updated rows of servers that exist and had not stopped.

        A call names each server at most once.
        """

    async def attend(self, server_id: str) -> None:
        """Tie the registered server to this process's session with the database, which ends with the process.

        The store sets `session` of the row once the session stands, and again whenever it had to be opened anew. A store without
        sessions, or one that cannot have one, does nothing. Idempotent.
        """

    async def leave(self, server_id: str) -> None:
        """Untie the server, which has reported its end; idempotent."""

    async def list_sightings(self) -> list[Sighting]:
        """Return the servers that have not ended, except remote workers, which have no process (pid 0).

        `has_session` is None unless the session was opened in the present instance of the database, and this process has had one
        for some seconds itself: after a failure of the database, or of the network, nobody seems to be gone.
        """

    async def end_servers(self, evidence: Mapping[str, str | None]) -> list[str]:
        """Record the end of servers that have not ended: state `stopped`, nothing running, no `session`, with this evidence.

        Their last heartbeat stays. Returns the ids of the changed servers: of several callers, one gets each.
        """
