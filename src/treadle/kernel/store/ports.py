"""The ports that a store implements, split by feature; `Store` combines them.

A service reads, decides in pure code, and hands `Store.commit` complete units. A unit has a guard (a claim, or the
version the service saw) and the rows that follow from it; the store applies all of it or nothing. No transaction is open
while Python decides, handlers run, or a network call is in flight.

The store's clock compares all instants (PostgreSQL: the database's clock; SQLite: the clock that the process passed in);
callers pass durations in milliseconds. Each docstring is the method's contract, and `treadle.testing.StoreContract`
checks it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, TypeVar

from treadle.kernel.store.database import DeadLetterStore, LogStore, RecordStore, RunStore, SearchStore, StreamStore, TraceStore
from treadle.kernel.store.metrics import MetricsStore
from treadle.kernel.store.operator_ports import HealthStore, NamespaceStore, OperatorStore, RetentionStore, ServerStore
from treadle.kernel.store.queries import (
    FinishedCounts,
    LeaseExtension,
    QueueDepth,
    Renewal,
    TaskFilter,
    Woken,
)
from treadle.kernel.store.units import Unit, UnitAnswer
from treadle.kernel.store.usage import UsageStore
from treadle.model.names import QueueKey
from treadle.model.tasks import Task

T = TypeVar("T")

LATER = 0
"""A marker among the queue ids of a signal: no task became ready, but a task was stored that will be due later."""

STREAM = -2
"""A marker among the queue ids of a signal: no task became ready, but entries were appended to a stream."""

SERVERS = -3
"""A marker among the queue ids of a signal: a server has started or died."""

CHANGED = -4
"""A marker among the queue ids of a signal: no task became ready, but something else was stored, e.g. the end of a task."""


class TaskStore(Protocol):
    """Tasks: claim them, wake them, commit units, read them."""

    async def queue_ids(self, queues: Sequence[QueueKey]) -> dict[QueueKey, int]:
        """Return the ids of the queues; create missing queues. Queues are never removed, and an id never changes."""

    async def list_queues(self) -> dict[int, QueueKey]:
        """Return all queues by id."""

    async def claim(
        self, queue_ids: Sequence[int], owner_id: str, lease_for: int, limit: int, scopes: Sequence[str] | None = None
    ) -> list[Task]:
        """Atomically take up to `limit` ready tasks of those queues, raising each claim version by one.

        With `scopes`, only tasks in one of these scopes are taken; the queues are tried in order.

        Each call takes from one queue: the first task of that queue has the best priority (smaller first), then the
        oldest due time. Fewer than `limit` tasks does not mean that the queues are empty; no task means that none was
        ready, or that other callers were taking them. No two callers receive the same (task, version). A task with a
        `wake_at`, an owner or a block reason is never taken, nor is a task of a paused queue; a queue with a rate yields at most as
        many tasks as it has tokens (`next_token_for`). `claimed_at`, `heartbeat_at` and `progress_at` become now, and
        `wake_at` the end of the lease. A claim writes no row to the log. `claim_tasks` releases those of a caller that is
        canceled during the call.
        """

    async def claim_of_run(self, run_id: str, kind: str, owner_id: str, lease_for: int, limit: int) -> list[str]:
        """Take up to `limit` ready tasks of that run and kind, as `claim` takes those of a queue; return their ids.

        Skips paused queues; ignores the rates of queues.
        """

    async def wake(self, limit: int, *, expire_leases: bool = True, find_ready: bool = False) -> Woken:
        """Make up to `limit` tasks with a past `wake_at` ready: a sleep, backoff or delay is over, or a lease expired.

        An expired lease counts as a takeover, raises `attempt` if the task was executing (state pending), and logs a
        transition `expire`. The claim version stays, so the former holder cannot settle (no owner matches) and cannot be
        mistaken for the next one. With `expire_leases` false, the call leaves owned tasks alone and reports them in
        `overdue` (D6). Concurrent callers never wake the same task twice. With `find_ready`, the call also reports in `ready`
        whether any task was ready before it, also one of a paused queue: the signal of that task may have been lost.
        """

    async def extend(self, renewals: Sequence[Renewal], lease_for: int) -> dict[str, LeaseExtension]:
        """Extend claims like `LeaseConnection.renew`, but never past the attempt's timeout either.

        For holders with attempts that no other process ends. A claim past one of these limits expires immediately.
        Returns the new end of each extended claim, by task id.
        """

    async def next_token_for(self, queue_ids: Sequence[int]) -> int | None:
        """Return the milliseconds until a claim may take from a queue with a rate and ready tasks; None without such a queue."""

    async def expire_leases_of(self, owner_ids: Sequence[str]) -> int:
        """Expire the leases of owners that are known to be dead, so that the next `wake` takes over; return their number."""

    async def list_unpolled(self, queue_ids: Sequence[int], limit: int) -> list[str]:
        """Return the ids of up to `limit` tasks of those queues that await an external job and are ready to be polled."""

    async def list_failing(self, queue_ids: Sequence[int], limit: int) -> list[str]:
        """Return the ids of up to `limit` tasks of those queues that wait after an error.

        Only the 10,000 waiting tasks that are due next are looked at.
        """

    async def find(self, task_id: str) -> Task | None:
        """Return the task, live or finished."""

    async def find_many(self, task_ids: Sequence[str], *, ended: bool = False) -> list[Task]:
        """Return those of the tasks that exist, live or finished; with `ended`, only finished ones."""

    async def find_unique(self, namespace: str, keys: Sequence[str]) -> dict[str, str]:
        """Return the task list of the live task that has each of these unique keys; keys that none has are left out."""

    async def list_matching(self, which: TaskFilter, limit: int) -> list[Task]:
        """Return up to `limit` tasks, live and finished, newest first (by creation time, then id)."""

    async def list_depths(self) -> list[QueueDepth]:
        """Return the depth of every queue that has a live task."""

    async def count_finished(self) -> FinishedCounts:
        """Count finished tasks by state. The numbers may be estimates, and not `exact`, of a history of over a million tasks.

        An estimate counts a task in no other state than its own.
        """


class Store(Protocol):
    """One database. Methods may be called concurrently from one event loop.

    A store that is not open raises `NotOpen`. A database that cannot be reached raises `StoreUnavailable` (the outcome of a
    commit in flight is unknown: send it again); one that refuses writes raises `StoreReadOnly`, `StoreBusy` or `StoreFull`.
    """

    url: str

    parallel_commits: int
    """The number of concurrent `commit` calls that the store benefits from: 1 for a single writer."""

    tasks: TaskStore
    dead_letters: DeadLetterStore
    runs: RunStore
    search: SearchStore
    records: RecordStore
    log: LogStore
    servers: ServerStore
    operators: OperatorStore
    usage: UsageStore
    metrics: MetricsStore
    traces: TraceStore
    streams: StreamStore
    retention: RetentionStore
    namespaces: NamespaceStore
    health: HealthStore

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

    async def now(self) -> int:
        """Return the store's clock, which compares leases, deadlines and retention times, in milliseconds."""

    async def commit(self, units: Sequence[Unit]) -> list[UnitAnswer]:
        """Apply each unit completely or not at all, independently of the others, durably, in one transaction if possible.

        - A guard that does not match changes nothing and yields `claim_lost`, as does a unit on a task that an
          earlier unit of the same call has changed.
        - Resending a committed unit (the connection died during COMMIT) yields `done` and changes nothing, for
          settlements under a `Claim` and for new tasks (by id). A repeated `Seen` unit yields `claim_lost`, because an
          operator may repeat an action only after reading again.
        - The run guard is checked first: if the run's version has moved on, the unit yields `deferred`, unless its
          claims show that it was committed before.
        - A record that is at another version yields `deferred` likewise. A unit with a new run or record that
          exists was sent before and yields `done`.
        - Messages to runs are delivered after everything else of the call.
        - A new task with an existing id or live unique key (per namespace) is not inserted; `existing` names the live one.
        - A task has at most one limit key: its own, or else its queue's. After the call, no more tasks of a key are
          admitted (the over-limit bit of `blocked_by` is clear) than its limit allows, and the next ones in line are: by
          priority, then due time. A task without an owner that sleeps, awaits something or is paused has given up its
          slot; a task with an expired lease keeps it.
        - A unit without a guard may be refused: `BacklogFull` if its tasks raise the number of ready tasks of a queue
          above its cap, `ListDraining` if it has new tasks for a list that accepts none. Units with a guard are not.
        - A new task with an idempotency key that identifies another task (live, finished or pruned) is not inserted
          until the key expires; `same` names that task. If a task is refused for its unique key, its idempotency key
          identifies the live task.
        - If a unit raises, nothing of the call is applied: the caller sends the units one by one to find the culprit.
        """

    async def subscribe(self, heard: Callable[[tuple[int, ...]], None]) -> Callable[[], None]:
        """Call `heard` (on this event loop) soon after tasks became ready in the given queues, in this or another process.

        An empty tuple means that anything may have happened: poll all queues. `LATER` among the ids means that a task
        was stored that will be due later; `STREAM` that entries were appended to a stream; `SERVERS` that a server has
        started or died; `CHANGED`, which only some stores send, that another process has stored something else. Returns a
        function that ends the subscription.
        """

    async def notify(self, queue_ids: Sequence[int]) -> None:
        """Signal all subscribers of this database. Called after a commit, coalesced by the caller; may be lost."""


class TransactionStore(Store, Protocol):
    """A store that writes in a transaction which somebody else commits."""

    async def transact(self, operate: Callable[[], Awaitable[T]]) -> T:
        """Run the operation in the transaction: completely, or not at all if it raises."""
