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
from typing import NamedTuple, Protocol, TypeVar

from treadle.kernel.store.operator_ports import HealthStore, NamespaceStore, OperatorStore, RetentionStore, ServerStore, UsageStore
from treadle.kernel.store.queries import (
    LATEST_FAILURE,
    NEWEST,
    DeadLetterFilter,
    DeadLetterGroup,
    DeadLetterRef,
    EntityHistory,
    FailedRun,
    LeaseExtension,
    OpenWork,
    Place,
    QueueDepth,
    Renewal,
    RunFilter,
    StepTask,
    Tally,
    TaskEnd,
    TaskFilter,
    TransitionEvent,
    TreeTask,
    Woken,
)
from treadle.kernel.store.records import EffectFilter, RecordFilter
from treadle.kernel.store.units import Unit, UnitAnswer
from treadle.model.names import QueueKey
from treadle.model.records import EffectOutcome, Message, Record, RecordItem, Stream, StreamChunk
from treadle.model.runs import Flow, FlowVersion, Run, Step
from treadle.model.tasks import LogLine, Task, Transition

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

    async def claim(self, queue_ids: Sequence[int], owner_id: str, lease_for: int, limit: int) -> list[Task]:
        """Atomically take up to `limit` ready tasks of those queues, raising each claim version by one.

        Each call takes from one queue: the first task of that queue has the best priority (smaller first), then the
        oldest due time. Fewer than `limit` tasks does not mean that the queues are empty; no task means that none was
        ready, or that other callers were taking them. No two callers receive the same (task, version). A task with a
        `wake_at`, an owner or a hold is never taken, nor is a task of a paused queue; a queue with a rate yields at most as
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

    async def count_finished(self) -> dict[str, int]:
        """Count finished tasks by state, without reading a long history: numbers above 20,000 may be estimates."""


class DeadLetterStore(Protocol):
    """Failed tasks, for inspection and bulk operations."""

    async def list_newest(self, which: DeadLetterFilter, limit: int) -> list[Task]:
        """Return up to `limit` failed tasks, the most recent failure first (by seq, downwards from `until_seq`)."""

    async def walk(self, which: DeadLetterFilter, limit: int) -> list[DeadLetterRef]:
        """Return up to `limit` failed tasks, the oldest failure first (by seq, upwards from `after_seq`)."""

    async def group(self, which: DeadLetterFilter, limit: int) -> list[DeadLetterGroup]:
        """Return up to `limit` groups of failed tasks by (fingerprint, error code, name), the largest first."""

    async def count(self, which: DeadLetterFilter) -> tuple[int, int, int]:
        """Return the number of failed tasks, the number of them that belong to runs, and their greatest seq (0 for none)."""


class RunStore(Protocol):
    """Reads of runs, steps, flows and large values. Units write them (`Store.commit`)."""

    async def find(self, run_id: str) -> Run | None:
        """Return the run."""

    async def find_many(self, run_ids: Sequence[str], states: Sequence[str] = ()) -> list[Run]:
        """Return those of the runs that exist, in one of the states unless there are none, in no order."""

    async def find_last_link(self, chain_id: str) -> Run | None:
        """Return the last run of the chain; None if its first run was not continued."""

    async def list_matching(self, which: RunFilter, limit: int) -> list[Run]:
        """Return up to `limit` runs, newest first (by creation time, then id)."""

    async def list_failed(self, namespace: str, after: int, limit: int, before: FailedRun = LATEST_FAILURE) -> list[FailedRun]:
        """Return up to `limit` runs that are failed and ended after the instant, latest first, from the one next to `before`."""

    async def count(self, which: RunFilter) -> dict[str, int]:
        """Count the runs that match the filter, by state; all runs of a namespace are counted in an index alone."""

    async def count_doing(self, which: RunFilter, limit: int) -> dict[str, int]:
        """Count the newest `limit` unfinished runs that match the filter, by what they are doing (`model.activity`)."""

    async def list_open_work(self, run_ids: Sequence[str]) -> list[OpenWork]:
        """Return the live tasks of the runs, counted by run and activity; in no order."""

    async def list_step_tasks(self, step_ids: Sequence[str]) -> list[StepTask]:
        """Return the live tasks of the steps; in no order."""

    async def list_children(self, run_id: str) -> list[str]:
        """Return the ids of the unfinished runs that steps of this run started (runs with a `parent_step_id`).

        Includes runs started by such a child that has finished meanwhile, at any depth.
        """

    async def load_steps(
        self, run_id: str, near: Sequence[str] = (), rows: Sequence[str] = (), children_of: Sequence[str] = ()
    ) -> list[Step]:
        """Return steps of the run, each once, in no order.

        These are the steps `near`, their ancestors, and all children of both that are not items of a foreach; the steps
        `rows`; and all children of the steps `children_of`.
        """

    async def list_steps(self, run_id: str, after_id: str | None, limit: int, *, with_inbox: bool = False) -> list[Step]:
        """Return a page of the run's steps in order of id; `with_inbox`: the first `limit` of those with a non-empty inbox."""

    async def find_step(self, step_id: str) -> Step | None:
        """Return the step with that id, of any run."""

    async def find_flow(self, flow_id: str) -> Flow | None:
        """Return the flow with that digest."""

    async def publish_flow(self, namespace: str, name: str, flow_id: str, actor: str) -> FlowVersion:
        """Publish the flow as the next version of the name; if it already is the newest version, change nothing."""

    async def find_flow_version(self, namespace: str, name: str, version: int | None = None) -> FlowVersion | None:
        """Return a version of a published flow, the newest by default."""

    async def list_flow_versions(self, namespace: str, name: str | None = None) -> list[FlowVersion]:
        """Return all versions of one name, or the newest version of every name."""

    async def find_blobs(self, digests: Sequence[str]) -> dict[str, str]:
        """Return the large values that exist, by digest."""


class ScanRange(NamedTuple):
    """A part of the runs or tasks (`entity`) of a namespace: those after the position `before`, created at `after` or later."""

    entity: str
    namespace: str
    before: Place = NEWEST
    after: int = 0


class SearchStore(Protocol):
    """Finds runs and tasks. Units write tags (`PutTags`); the store keeps the words of errors itself."""

    async def list_tags(self, owner_ids: Sequence[str]) -> dict[str, dict[str, str]]:
        """Return the tags of runs and tasks in stored form (`model.tags`), by id; those without tags are left out."""

    async def list_tagged(self, span: ScanRange, key: str, value: str, limit: int) -> list[Place]:
        """Return up to `limit` runs or tasks of the span with that tag, newest first."""

    async def list_with_words(self, span: ScanRange, words: Sequence[str], limit: int) -> list[Place]:
        """Return at least `limit` runs, or ended tasks, of the span whose error has all these words, newest first.

        Fewer means that there are no others. A word may end in `*`. Encoded errors are not found.
        """

    async def list_failing_tasks(self, span: ScanRange, limit: int) -> list[Place]:
        """Return up to `limit` live tasks of the span with an error, newest first."""

    async def list_run_names(self, prefix: str, limit: int) -> list[str]:
        """Return up to `limit` names of workflows and functions with runs, of any namespace, that begin with the prefix."""

    async def list_ids(self, entity: str, namespace: str, first: str, last: str, limit: int) -> list[str]:
        """Return up to `limit` ids of runs, tasks, steps, or records of that entity, from `first` to `last`, the greatest first."""


class RecordStore(Protocol):
    """Reads of records, messages and effect outcomes. Units write them (`Store.commit`)."""

    async def find(self, record_id: str) -> Record | None:
        """Return the record, live or ended."""

    async def find_named(self, namespace: str, entity: str, name: str) -> Record | None:
        """Return the live record with that name."""

    async def list_matching(self, which: RecordFilter, limit: int) -> list[Record]:
        """Return up to `limit` records, newest first (by id)."""

    async def count(self, namespace: str, entity: str) -> dict[str, int]:
        """Count the records of the entity by state."""

    async def list_items(
        self, record_id: str, after_key: str | None = None, limit: int = 1000, *, keys: Sequence[str] | None = None
    ) -> list[RecordItem]:
        """Return a page of the record's items in order of key (by code point), or all items that exist among the keys."""

    async def list_messages(self, run_id: str, limit: int, after_seq: int = 0) -> list[Message]:
        """Return up to `limit` messages that the run has not consumed, in order of arrival.

        The messages read at a version of the run are all messages that exist at that version.
        """

    async def find_outcomes(self, keys: Sequence[str]) -> list[EffectOutcome]:
        """Return the recorded outcomes of the effects with these keys."""

    async def list_outcomes(self, root_ids: Sequence[str], after_key: str | None, limit: int) -> list[EffectOutcome]:
        """Return a page of the outcomes of those trees' effects, in order of key (by code point)."""

    async def list_unknown(self, which: EffectFilter, limit: int) -> list[EffectOutcome]:
        """Return up to `limit` effects that have become unknown (`unknown_at`) and are still `unknown`, newest first."""

    async def count_unknown(self, root_ids: Sequence[str]) -> int:
        """Count the effects of those trees that are `unknown`: begun, with no recorded end."""


class LogStore(Protocol):
    """Transitions, numbered by seq, and log lines."""

    seqs_in_order: bool
    """Whether transitions are committed in the order of their seqs."""

    async def list_transitions(self, *entity_ids: str) -> list[Transition]:
        """Return the transitions of these entities, in order of entity and version; the end of a finished task is the last of
        them."""

    async def list_takeovers(self, run_id: str, limit: int) -> list[Transition]:
        """Return the last `limit` expiries of leases on tasks of the run, oldest first; the actor is the owner that lost one."""

    async def list_histories(self, after_id: str | None, limit: int) -> list[EntityHistory]:
        """Return the histories of up to `limit` tasks, runs and records after `after_id`, in order of id.

        Each history is read at one instant.
        """

    async def list_events(self, after_seq: int, until_seq: int, limit: int) -> list[TransitionEvent]:
        """Return up to `limit` transitions with a seq above `after_seq` and up to `until_seq`, in order, read at one instant.

        If `seqs_in_order`, every transition before a returned one is visible too. Otherwise one may appear up to 15 s later
        (D9). Gaps in the numbers are normal.
        """

    async def find_last_seq(self) -> int:
        """Return the last seq assigned to a transition, committed or not."""

    async def tally(self, after_seq: int, until_seq: int) -> list[Tally]:
        """Count the transitions of tasks by minute, among the transitions with a seq above `after_seq` and up to `until_seq`.

        Reads all of these transitions, so callers bound the range. Excludes transitions of pruned tasks.
        """

    async def list_ends(self, limit: int) -> list[TaskEnd]:
        """The last `limit` ends of tasks, without pruned ones; reads no more rows than that."""

    async def append_lines(self, lines: Sequence[LogLine]) -> None:
        """Store log lines. They are not fenced and have no order relative to commits."""

    async def list_lines(self, task_id: str, limit: int) -> list[LogLine]:
        """Return the task's last `limit` lines, oldest first."""

    async def page_run_lines(
        self, run_id: str, limit: int, before: int | None = None, after: int | None = None
    ) -> list[tuple[int, LogLine]]:
        """Return numbered lines of a run (of its tasks and its flow) in the order of writing.

        These are the first `limit` lines after the number `after`, or else the last `limit` lines before the number
        `before` (by default, the last lines).
        """


class TraceStore(Protocol):
    """Reads of whole trees; each uses an index, and costs as much as the trees have rows, up to `limit`."""

    async def list_roots(self, namespace: str, trace_id: str, limit: int) -> list[str]:
        """Return up to `limit` ids of the runs and tasks that began a tree in this trace, newest first."""

    async def find_trees(
        self, root_ids: Sequence[str], runs: int, tasks: int, records: int
    ) -> tuple[list[Run], list[TreeTask], list[Record]]:
        """Return up to so many runs, tasks (live and finished) and records of the trees, each oldest first (by id)."""


class StreamStore(Protocol):
    """Reads of streams; each uses an index. Offsets become visible in order: one that appears has all smaller ones before it."""

    async def list_of(self, owner_ids: Sequence[str]) -> list[Stream]:
        """Return the streams of these runs and tasks, in order of owner and name (by code point)."""

    async def list_chunks(self, owner_id: str, name: str, offset: int, limit: int) -> list[StreamChunk]:
        """Return up to `limit` chunks in order of offset, from the one that contains `offset` or else the next one.

        The first one may end before `offset` if the chunk that contained it was removed: a writer's last abandoned
        generation is kept, and older ones are removed when the next one is abandoned.
        """

    async def count_entries(self, owner_id: str, name: str, writer: str) -> int:
        """Return how many entries the last session of the writer has appended."""


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
          admitted (the over-limit bit of `hold` is clear) than its limit allows, and the next ones in line are: by
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
