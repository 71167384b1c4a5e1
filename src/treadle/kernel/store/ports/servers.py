"""The ports for servers: their rows, and the connection over which they renew leases."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from treadle.kernel.store.ports.clock import StoreClock
from treadle.kernel.store.queries import Renewal, Touch
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

    def beat(self, server: Server) -> None:
        """Insert or update the server's row; `heartbeat_at` becomes now, `started_at` keeps its first value."""

    def now(self) -> int:
        """Return the store's clock, in milliseconds."""

    def close(self) -> None:
        """Release the connection; idempotent."""


class ServerStore(StoreClock, Protocol):
    """Processes that host workers."""

    def lease_connection(self) -> LeaseConnection:
        """Create a lease connection for one thread. May be called from any thread."""

    async def list_servers(self) -> list[Server]:
        """Return all servers that sent a heartbeat and were not pruned, newest first."""

    async def save_server(self, server: Server) -> None:
        """Insert or update the server's row, as `LeaseConnection.beat` does."""

    async def touch_servers(self, touches: Sequence[Touch]) -> list[Server]:
        """Record heartbeats in one statement; return the updated rows of servers that exist and had not stopped.

        A call names each server at most once.
        """
