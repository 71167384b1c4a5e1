"""The ports that a store implements, split by feature; `Store` combines them.

A service reads, decides in pure code, and hands `TaskStore.commit` complete units. A unit has a guard (a claim, or the
version the service saw) and the rows that follow from it; the store applies all of it or nothing. No transaction is open
while Python decides, handlers run, or a network call is in flight.

The store's clock compares all instants (PostgreSQL: the database's clock; SQLite: the clock that the process passed in);
callers pass durations in milliseconds. Each docstring is the method's contract, and `treadle.testing.StoreContract`
checks it.
"""

from __future__ import annotations

from typing import Protocol

from treadle.kernel.store.ports.clock import StoreClock
from treadle.kernel.store.ports.log import LogStore
from treadle.kernel.store.ports.maintenance import HealthStore, RetentionStore
from treadle.kernel.store.ports.namespaces import NamespaceStore
from treadle.kernel.store.ports.operators import OperatorStore
from treadle.kernel.store.ports.records import RecordStore
from treadle.kernel.store.ports.runs import RunStore
from treadle.kernel.store.ports.search import SearchStore
from treadle.kernel.store.ports.servers import LeaseConnection, ServerStore
from treadle.kernel.store.ports.streams import StreamStore
from treadle.kernel.store.ports.tasks import CHANGED, LATER, SERVERS, STREAM, DeadLetterStore, SignalStore, TaskStore
from treadle.kernel.store.ports.traces import TraceStore
from treadle.kernel.store.ports.usage import UsageStore

__all__ = [
    "CHANGED",
    "LATER",
    "SERVERS",
    "STREAM",
    "DeadLetterStore",
    "HealthStore",
    "LeaseConnection",
    "LogStore",
    "NamespaceStore",
    "OperatorStore",
    "RecordStore",
    "RetentionStore",
    "RunStore",
    "SearchStore",
    "ServerStore",
    "SignalStore",
    "Store",
    "StoreClock",
    "StreamStore",
    "TaskStore",
    "TraceStore",
    "UsageStore",
]


class Store(
    TaskStore,
    DeadLetterStore,
    SignalStore,
    RunStore,
    SearchStore,
    RecordStore,
    LogStore,
    ServerStore,
    OperatorStore,
    UsageStore,
    TraceStore,
    StreamStore,
    RetentionStore,
    NamespaceStore,
    HealthStore,
    Protocol,
):
    """One database. Methods may be called concurrently from one event loop.

    A store that is not open raises `NotOpen`. A database that cannot be reached raises `StoreUnavailable` (the outcome of a
    commit in flight is unknown: send it again); one that refuses writes raises `StoreReadOnly`, `StoreBusy` or `StoreFull`.
    """

    url: str

    async def open(self, *, migrate: bool = True) -> None:
        """Connect and check the schema: bring it up to date if `migrate`, else raise `SchemaBehind`.

        Raises `SchemaTooNew`, and changes nothing, for a schema that this code does not know.
        """

    async def close(self) -> None:
        """Release everything; idempotent. Committed work is durable even if `close` is never called."""

    async def migrate_to(self, version: int) -> None:
        """Bring the schema of an open store to exactly that version, up or down, atomically; 0 removes everything.

        Raises `SchemaTooNew`, and changes nothing, for a version that this code does not know. No other process may
        use the database at the same time.
        """
