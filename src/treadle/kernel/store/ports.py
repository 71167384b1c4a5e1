"""The ports that a store implements, split by feature; `Store` combines them.

A service reads, decides in pure code, and hands `Store.commit` complete units. A unit has a guard (a claim, or the
version the service saw) and the rows that follow from it; the store applies all of it or nothing. No transaction is open
while Python decides, handlers run, or a network call is in flight.

The store's clock compares all instants (PostgreSQL: the database's clock; SQLite: the clock that the process passed in);
callers pass durations in milliseconds. Each docstring is the method's contract, and `treadle.testing.StoreContract`
checks it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

from treadle.kernel.store.queries import (
    LATEST_FAILURE,
    NEWEST,
    DeadLetter,
    DeadLetterFilter,
    DeadLetterGroup,
    Event,
    Extension,
    FailedRun,
    Health,
    History,
    LaneDepth,
    OpenWork,
    Place,
    Pruned,
    PrunePage,
    Renewal,
    Roll,
    Rules,
    RunFilter,
    Sighting,
    StepTask,
    Tally,
    TaskEnd,
    TaskFilter,
    Touch,
    TreeTask,
    Woken,
)
from treadle.kernel.store.records import EffectFilter, RecordFilter
from treadle.kernel.store.units import Answer, Unit
from treadle.model.lists import LaneRule, Limit, TaskList
from treadle.model.names import Lane
from treadle.model.records import EffectOutcome, HandlerRegistration, Message, Record, Stream, StreamChunk
from treadle.model.runs import Flow, FlowVersion, Run, Step
from treadle.model.tasks import Claim, LogLine, Move, Server, Task
from treadle.model.usage import Budget, Reservation, Usage

if TYPE_CHECKING:
    from treadle.kernel.store.transfer import NamespaceImport, StoredRow

T = TypeVar("T")

LATER = 0
"""A marker among the lane ids of a signal: no task became ready, but a task was stored that will be due later."""

STREAM = -2
"""A marker among the lane ids of a signal: no task became ready, but entries were appended to a stream."""

SERVERS = -3
"""A marker among the lane ids of a signal: a server has started or died."""

CHANGED = -4
"""A marker among the lane ids of a signal: no task became ready, but something else was stored, e.g. the end of a task."""


class TaskStore(Protocol):
    """Tasks: claim them, wake them, commit units, read them."""

    async def lane_ids(self, lanes: Sequence[Lane]) -> dict[Lane, int]:
        """Return the ids of the lanes; create missing lanes. Lanes are never removed, and an id never changes."""

    async def list_lanes(self) -> dict[int, Lane]:
        """Return all lanes by id."""

    async def claim(self, lane_ids: Sequence[int], owner_id: str, lease_for: int, limit: int) -> list[Task]:
        """Atomically take up to `limit` ready tasks of those lanes, raising each claim version by one.

        Each call takes from one lane: the first task of that lane has the best priority (smaller first), then the
        oldest due time. Fewer than `limit` tasks does not mean that the lanes are empty; no task means that none was
        ready, or that other callers were taking them. No two callers receive the same (task, version). A task with a
        `wake_at`, an owner or a hold is never taken, nor is a task of a paused lane; a lane with a rate yields at most as
        many tasks as it has tokens (`next_token_for`). `claimed_at`, `heartbeat_at` and `progress_at` become now, and
        `wake_at` the end of the lease. A claim writes no row to the log. The engine releases the tasks of a caller that is
        canceled during the call.
        """

    async def claim_of_run(self, run_id: str, kind: str, owner_id: str, lease_for: int, limit: int) -> list[str]:
        """Take up to `limit` ready tasks of that run and kind, as `claim` takes those of a lane; return their ids.

        Skips paused lanes; ignores the rates of lanes.
        """

    async def wake(self, limit: int, *, expire_leases: bool = True, find_ready: bool = False) -> Woken:
        """Make up to `limit` tasks with a past `wake_at` ready: a sleep, backoff or delay is over, or a lease expired.

        An expired lease counts as a takeover, raises `attempt` if the task was executing (state pending), and logs a
        move `expire`. The claim version stays, so the former holder cannot settle (no owner matches) and cannot be
        mistaken for the next one. With `expire_leases` false, the call leaves owned tasks alone and reports them in
        `overdue` (D6). Concurrent callers never wake the same task twice. With `find_ready`, the call also reports in `ready`
        whether any task was ready before it, also one of a paused lane: the signal of that task may have been lost.
        """

    async def extend(self, renewals: Sequence[Renewal], lease_for: int) -> dict[str, Extension]:
        """Extend claims like `LeaseConnection.renew`, but never past the attempt's timeout either.

        For holders with attempts that no other process ends. A claim past one of these limits expires immediately.
        Returns the new end of each extended claim, by task id.
        """

    async def next_token_for(self, lane_ids: Sequence[int]) -> int | None:
        """Return the milliseconds until a claim may take from a lane with a rate and ready tasks; None without such a lane."""

    async def expire_leases_of(self, owner_ids: Sequence[str]) -> int:
        """Expire the leases of owners that are known to be dead, so that the next `wake` takes over; return their number."""

    async def list_unpolled(self, lane_ids: Sequence[int], limit: int) -> list[str]:
        """Return the ids of up to `limit` tasks of those lanes that await an external job and are ready to be polled."""

    async def list_failing(self, lane_ids: Sequence[int], limit: int) -> list[str]:
        """Return the ids of up to `limit` tasks of those lanes that wait after an error.

        Only the 10,000 waiting tasks that are due next are looked at.
        """

    async def find(self, task_id: str) -> Task | None:
        """Return the task, live or finished."""

    async def find_many(self, task_ids: Sequence[str]) -> list[Task]:
        """Return those of the tasks that exist, live or finished."""

    async def find_unique(self, namespace: str, keys: Sequence[str]) -> dict[str, str]:
        """Return the task list of the live task that has each of these unique keys; keys that none has are left out."""

    async def find_finished(self, task_ids: Sequence[str]) -> list[Task]:
        """Return those of the tasks that are finished."""

    async def list_matching(self, which: TaskFilter, limit: int) -> list[Task]:
        """Return up to `limit` tasks, live and finished, newest first (by creation time, then id)."""

    async def list_depths(self) -> list[LaneDepth]:
        """Return the depth of every lane that has a live task."""

    async def count_finished(self) -> dict[str, int]:
        """Count finished tasks by state, without reading a long history: numbers above 20,000 may be estimates."""


class DeadLetterStore(Protocol):
    """Failed tasks, for inspection and bulk operations."""

    async def list_newest(self, which: DeadLetterFilter, limit: int) -> list[Task]:
        """Return up to `limit` failed tasks, the most recent failure first (by seq, downwards from `until_seq`)."""

    async def walk(self, which: DeadLetterFilter, limit: int) -> list[DeadLetter]:
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

    async def find_finished(self, run_ids: Sequence[str]) -> list[Run]:
        """Return those of the runs that are finished."""

    async def list_matching(self, which: RunFilter, limit: int) -> list[Run]:
        """Return up to `limit` runs, newest first (by creation time, then id)."""

    async def list_failed(self, namespace: str, after: int, limit: int, before: FailedRun = LATEST_FAILURE) -> list[FailedRun]:
        """Return up to `limit` runs that are failed and ended after the instant, latest first, from the one next to `before`."""

    async def count(self, namespace: str) -> dict[str, int]:
        """Count the runs of the namespace by state."""

    async def count_matching(self, which: RunFilter) -> dict[str, int]:
        """Count the runs that match the filter, by state."""

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

    async def list_inbox(self, run_id: str, limit: int) -> list[Step]:
        """Return up to `limit` steps of the run with a non-empty inbox."""

    async def list_steps(self, run_id: str, after_id: str | None, limit: int) -> list[Step]:
        """Return a page of the run's steps in order of id."""

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


class Span(NamedTuple):
    """A part of the runs or tasks (`entity`) of a namespace: those after the position `before`, created at `after` or later."""

    entity: str
    namespace: str
    before: Place = NEWEST
    after: int = 0


class SearchStore(Protocol):
    """Finds runs and tasks. Units write tags (`PutTags`); the store keeps the words of errors itself."""

    async def list_tags(self, owner_ids: Sequence[str]) -> dict[str, dict[str, str]]:
        """Return the tags of runs and tasks in stored form (`model.tags`), by id; those without tags are left out."""

    async def list_tagged(self, span: Span, key: str, value: str, limit: int) -> list[Place]:
        """Return up to `limit` runs or tasks of the span with that tag, newest first."""

    async def list_with_words(self, span: Span, words: Sequence[str], limit: int) -> list[Place]:
        """Return at least `limit` runs, or ended tasks, of the span whose error has all these words, newest first.

        Fewer means that there are no others. A word may end in `*`. Sealed errors are not found.
        """

    async def list_failing_tasks(self, span: Span, limit: int) -> list[Place]:
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

    async def list_items(self, record_id: str, after_key: str | None, limit: int) -> list[tuple[str, str]]:
        """Return a page of the record's items in order of key (by code point)."""

    async def find_items(self, record_id: str, keys: Sequence[str]) -> dict[str, str]:
        """Return the items that exist among those keys."""

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
    """Moves, numbered by seq, and log lines."""

    seqs_in_order: bool
    """Whether moves are committed in the order of their seqs."""

    async def list_moves(self, entity_id: str) -> list[Move]:
        """Return the entity's moves in order of version; the end of a finished task is the last of them."""

    async def list_moves_of(self, entity_ids: Sequence[str]) -> list[Move]:
        """Return the moves of these entities, as `list_moves` does for each, in order of entity and version."""

    async def list_takeovers(self, run_id: str, limit: int) -> list[Move]:
        """Return the last `limit` expiries of leases on tasks of the run, oldest first; the actor is the owner that lost one."""

    async def list_histories(self, after_id: str | None, limit: int) -> list[History]:
        """Return the histories of up to `limit` tasks, runs and records after `after_id`, in order of id.

        Each history is read at one instant.
        """

    async def list_events(self, after_seq: int, until_seq: int, limit: int) -> list[Event]:
        """Return up to `limit` moves with a seq above `after_seq` and up to `until_seq`, in order, read at one instant.

        If `seqs_in_order`, every move before a returned one is visible too. Otherwise one may appear up to 15 s later
        (D9). Gaps in the numbers are normal.
        """

    async def find_last_seq(self) -> int:
        """Return the last seq assigned to a move, committed or not."""

    async def tally(self, after_seq: int, until_seq: int) -> list[Tally]:
        """Count the moves of tasks by minute, among the moves with a seq above `after_seq` and up to `until_seq`.

        Reads all of these moves, so callers bound the range. Excludes moves of pruned tasks.
        """

    async def list_ends(self, limit: int) -> list[TaskEnd]:
        """The last `limit` ends of tasks, without pruned ones; reads no more rows than that."""

    async def append_lines(self, lines: Sequence[LogLine]) -> None:
        """Store log lines. They are not fenced and have no order relative to commits."""

    async def list_lines(self, task_id: str, limit: int) -> list[LogLine]:
        """Return the task's last `limit` lines, oldest first."""

    async def list_run_lines(self, run_id: str, limit: int) -> list[LogLine]:
        """Return the last `limit` lines of a run (of its tasks and its flow), in the order of writing."""

    async def page_run_lines(
        self, run_id: str, limit: int, before: int | None = None, after: int | None = None
    ) -> list[tuple[int, LogLine]]:
        """Return numbered lines of a run in the order of writing.

        These are the first `limit` lines after the number `after`, or else the last `limit` lines before the number
        `before` (by default, the last lines).
        """


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


class ServerStore(Protocol):
    """Processes that host workers."""

    def lease_connection(self) -> LeaseConnection:
        """Create a lease connection for one thread. May be called from any thread."""

    async def list_all(self, namespace: str | None = None) -> list[Server]:
        """Return the servers that sent a heartbeat and were not pruned, newest first: those of the namespace, or all.

        A server without a namespace, registered by an older version, counts for every namespace: it may serve any of them.
        """

    async def save(self, server: Server) -> None:
        """Insert or update the server's row, as `LeaseConnection.beat` does."""

    async def touch(self, touches: Sequence[Touch]) -> list[Server]:
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

    async def end(self, evidence: Mapping[str, str | None]) -> list[str]:
        """Record the end of servers that have not ended: state `stopped`, nothing running, no `session`, with this evidence.

        Their last heartbeat stays. Returns the ids of the changed servers: of several callers, one gets each.
        """


class OperatorStore(Protocol):
    """Settings that operators change at run time."""

    async def list_lists(self) -> list[TaskList]:
        """Return the lists that have settings; all other lists have the defaults."""

    async def set_list(
        self,
        namespace: str,
        task_list: str,
        *,
        paused: bool | None = None,
        accepting: bool | None = None,
        no_handler: str | None = None,
    ) -> tuple[int, ...]:
        """Change the settings that are not None, for all lanes of the list, including lanes created later.

        Returns the lanes that may have work now.
        """

    async def list_lane_rules(self) -> list[LaneRule]:
        """Return all lanes with their settings."""

    async def set_rate(self, lane_id: int, rate: float | None, burst: int | None) -> None:
        """Limit claims to `rate` tasks per second with bursts of up to `burst`; None removes the rate."""

    async def set_backlog_limit(self, lane_id: int, backlog_limit: int | None) -> None:
        """Refuse new tasks when the lane has `backlog_limit` ready tasks; None removes the cap."""

    async def list_limits(self, namespace: str) -> list[Limit]:
        """Return all limits of the namespace, each with its number of admitted and waiting tasks."""

    async def list_admitted(self, namespace: str, key: str, limit: int) -> list[str]:
        """Return the ids of up to `limit` admitted tasks of the key."""

    async def set_limit(self, namespace: str, key: str, max_running: int | None) -> tuple[int, ...]:
        """Set an operator's limit of the key; None removes it. Returns the lanes in which tasks became ready.

        For the key of a handler (`handler:NAME`), all tasks of that name without a key get it, including existing ones.
        Tasks that run when a limit is set or lowered continue; no other task of the key starts until there is room.
        """

    async def set_key_rate(self, namespace: str, key: str, rate: float | None, burst: int | None) -> tuple[int, ...]:
        """Let tasks of the key start at `rate` per second with bursts of up to `burst`; None removes the rate.

        Of any span of t seconds, no more than `burst + rate * t` claims of the key's tasks fall into it, across all workers. A
        change applies to waiting tasks immediately; tokens that are left stay, up to the new burst. Returns the lanes in which
        tasks became ready.
        """

    async def set_handler_key(self, namespace: str, name: str, key: str | None) -> tuple[int, ...]:
        """Set the limit key of the handler's tasks that have none of their own, including existing ones; None removes it.

        Returns the lanes in which tasks became ready.
        """

    async def list_handler_keys(self, namespace: str) -> dict[str, str]:
        """Return the limit keys of handlers by name."""

    async def list_handlers(self, namespace: str) -> list[HandlerRegistration]:
        """Return the handler registrations of the namespace, by name."""

    async def save_handler(self, namespace: str, registration: HandlerRegistration) -> None:
        """Insert or replace the registration of that facet; `created` keeps its first value, `updated` becomes now."""

    async def delete_handler(self, namespace: str, facet_name: str) -> bool:
        """Remove the registration; return False if there was none."""


class UsageStore(Protocol):
    """Budgets and usage of runs. All rows are pruned with their run."""

    async def set_budget(self, run_id: str, limit_micros: int | None) -> None:
        """Set the run's total budget (None: unlimited); may be called before the run exists."""

    async def forget_budget(self, run_id: str) -> None:
        """Remove the budget of a run that was never created; a no-op if an amount was reserved under it."""

    async def find_budget(self, run_id: str) -> Budget | None:
        """Return the run's budget, or None if none was set and nothing was reserved."""

    async def reserve(self, usage: Usage, default_limit: int | None) -> Reservation:
        """Reserve `usage.reserved_micros` for a request if the committed total stays within the run's budget.

        Atomic: concurrent calls never reserve more than the budget. Idempotent on (task, attempt, request number): a
        second call returns the existing row. The call takes over a reservation that an earlier attempt of the task left
        unsettled, so a crash charges nothing twice. A run without a budget gets `default_limit`.
        """

    async def settle(self, usage: Usage) -> bool:
        """Replace the reservation (by `usage.id`) by tokens and actual cost; return False if it was settled before."""

    async def list_requests(self, run_id: str) -> list[Usage]:
        """Return all requests of the run, oldest first."""


class TraceStore(Protocol):
    """Reads of whole trees; each uses an index, and costs as much as the trees have rows, up to `limit`."""

    async def list_roots(self, namespace: str, trace_id: str, limit: int) -> list[str]:
        """Return up to `limit` ids of the runs and tasks that began a tree in this trace, newest first."""

    async def list_runs(self, root_ids: Sequence[str], limit: int) -> list[Run]:
        """Return up to `limit` runs of the trees, oldest first (by id)."""

    async def list_tasks(self, root_ids: Sequence[str], limit: int) -> list[TreeTask]:
        """Return up to `limit` tasks of the trees, live and finished, oldest first (by id)."""

    async def list_records(self, root_ids: Sequence[str], limit: int) -> list[Record]:
        """Return up to `limit` records of the trees (such as approvals and external jobs), oldest first (by id)."""


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


class RetentionStore(Protocol):
    """Find and remove finished work after its retention time."""

    async def prepare(self, rules: Rules) -> None:
        """Prepare the storage of new work for its removal by these rules; idempotent, and a no-op for most stores."""

    async def drop_expired(self, rules: Rules, limit: int) -> Pruned:
        """Remove trees that are stored together and have expired, at less cost than one by one; call again while there is `more`.

        Leaves alone whatever may not be pruned, as `prune_trees` does. A no-op for a store that has no such means.
        """

    async def find_prunable(
        self, rules: Rules, cursor: str | None, limit: int, *, count: bool = False, patient: bool = False
    ) -> PrunePage:
        """Scan the next `limit` ends of the namespace, in the order in which they occurred, for trees to prune.

        A tree may be pruned when it has no live task and no unfinished run, and the retention time of all its parts is
        over. With `count`, the page has `tasks` and `trees`. The scan ends where nothing can be old enough. If `patient`,
        it leaves out trees that `drop_expired` will be able to remove within a quarter of their retention time, or a week.
        """

    async def prune_trees(self, rules: Rules, roots: Sequence[str], limit: int) -> Pruned:
        """Remove the trees in one transaction, but no more than about `limit` rows: call again while there is `more`.

        Leaves a tree that may not be pruned (any more) untouched. Runs are removed last, so that the next scan finds
        the rest of a tree after a crash. A large value goes with the last tree that uses it; records, messages,
        effect outcomes and streams go with their tree.
        """

    async def set_keep(self, namespace: str, task_list: str, completed_for: int | None, failed_for: int | None) -> None:
        """Set the list's own retention times; None means the default."""

    async def prune_rest(self, limit: int, keep_servers_for: int, keep_records_for: int) -> tuple[int, int, int]:
        """Remove expired keys, silent servers, and old records that belong to no tree; return the number of each.

        Removes up to `limit` expired idempotency keys, servers without a heartbeat for `keep_servers_for`, and up to
        `limit` records, with their moves, that ended `keep_records_for` ago.
        """

    async def compact(self, *, whole: bool = False, tight: bool = False) -> int:
        """Return free space to the system in a short step; return the bytes, 0 when done.

        A reserve for new rows stays free, unless `tight`. With `whole`, rewrite the store in one long step that others wait for.
        A no-op for a store that does this by itself; there, `whole` raises `Unsupported`. A store that cannot do it in steps does
        nothing, and raises `Unsupported` if `tight`.
        """


class HealthStore(Protocol):
    """Facts about the database for operators."""

    async def describe(self) -> dict[str, object]:
        """Return the kind of store, the version of its library or server, the schema version, and sizes."""

    async def overdue_for(self) -> int:
        """Return for how many milliseconds the first due `wake_at` has been due, 0 for none; one index lookup."""

    async def check(self) -> Health:
        """Return the health of the database; may take seconds on a large store."""

    async def list_damage(self, *, pages: bool = True) -> list[str]:
        """Return one line for each sign of damage below the rows: missing commits, and damaged pages and texts.

        Without `pages` it does not read the whole database.
        """

    async def accept_damage(self) -> str | None:
        """Forget which commits the database should have, e.g. after a backup was restored; return a description of them.

        Call it before `open`. None if nothing was known.
        """

    async def backup(self, path: str) -> int:
        """Copy the database as of this instant into a new file while it is in use; return the file's size in bytes.

        Refuses an existing path. A store with its own backup tools raises `Unsupported`, which names them.
        """


class NamespaceStore(Protocol):
    """All rows of a namespace. Their tables are `TABLES` of `kernel.store.transfer`."""

    async def list_names(self) -> list[str]:
        """Return the namespaces with tasks, runs or records, in order."""

    async def export_rows(self, namespace: str, receive: Callable[[str, StoredRow], None]) -> None:
        """Pass all rows of the namespace with the names of their tables to `receive`, as they are at one moment.

        They have the same form in every kind of store, and come in an order in which they can be written.
        """

    async def import_rows(self, incoming: NamespaceImport) -> None:
        """Insert the rows of an export in one transaction; if anything in it raises, nothing is imported.

        Before, the rows that the namespace has are passed to `refuse_row`; after, those that it has then to `check_row`. Then it
        calls `finish`, and commits. Shared rows that exist stay as they are, except that lanes get the settings.
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

    async def commit(self, units: Sequence[Unit]) -> list[Answer]:
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
        - A task has at most one limit key: its own, or else its lane's. After the call, no more tasks of a key are
          admitted (the over-limit bit of `hold` is clear) than its limit allows, and the next ones in line are: by
          priority, then due time. A task without an owner that sleeps, awaits something or is paused has given up its
          slot; a task with an expired lease keeps it.
        - A unit without a guard may be refused: `BacklogFull` if its tasks raise the number of ready tasks of a lane
          above its cap, `ListDraining` if it has new tasks for a list that accepts none. Units with a guard are not.
        - A new task with an idempotency key that identifies another task (live, finished or pruned) is not inserted
          until the key expires; `same` names that task. If a task is refused for its unique key, its idempotency key
          identifies the live task.
        - If a unit raises, nothing of the call is applied: the caller sends the units one by one to find the culprit.
        """

    async def subscribe(self, heard: Callable[[tuple[int, ...]], None]) -> Callable[[], None]:
        """Call `heard` (on this event loop) soon after tasks became ready in the given lanes, in this or another process.

        An empty tuple means that anything may have happened: poll all lanes. `LATER` among the ids means that a task
        was stored that will be due later; `STREAM` that entries were appended to a stream; `SERVERS` that a server has
        started or died; `CHANGED`, which only some stores send, that another process has stored something else. Returns a
        function that ends the subscription.
        """

    async def notify(self, lane_ids: Sequence[int]) -> None:
        """Signal all subscribers of this database. Called after a commit, coalesced by the caller; may be lost."""


class TransactionStore(Store, Protocol):
    """A store that writes in a transaction which somebody else commits."""

    async def transact(self, operate: Callable[[], Awaitable[T]]) -> T:
        """Run the operation in the transaction: completely, or not at all if it raises."""
