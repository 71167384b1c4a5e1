"""What a store promises. A store is whatever keeps these promises; `tests/contract` checks every one on every store.

The idea of the write side: a service reads, decides in pure code, and hands `commit` complete units. A unit has a
guard (whose work this is, or what was seen) and the rows that follow from it; it happens as a whole or not at all. No
transaction is open while Python decides, handlers run, or a network is waited for.

All instants are compared with the store's clock (PostgreSQL: the database's; SQLite: that of the process, handed in);
callers pass durations in milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from treadle.kernel.store.queries import (
    DeadFilter,
    DeadGroup,
    DeadLetter,
    Event,
    Extension,
    Health,
    History,
    LaneDepth,
    Pruned,
    PrunePage,
    Renewal,
    Rules,
    RunFilter,
    Tally,
    TaskFilter,
    Touch,
    Woken,
)
from treadle.kernel.store.records import EntityStore
from treadle.kernel.store.units import Answer, Unit
from treadle.kernel.store.usage import UsageStore
from treadle.model.handlers import HandlerRegistration
from treadle.model.lists import LaneRule, Limit, TaskList
from treadle.model.names import Lane
from treadle.model.runs import Flow, FlowVersion, Run, Step
from treadle.model.tasks import Claim, LogLine, Move, Server, Task

# --- the ports ---


LATER = 0
"""In a signal, where the ids of lanes are: nothing is ready by that, but something was stored that will be due."""


class LeaseConnection(Protocol):
    """A way to the store that belongs to one thread alone, so that a blocked event loop costs no leases.

    Its methods block; they are called from the keeper's thread only.
    """

    def renew(self, renewals: Sequence[Renewal], lease_for: int) -> set[str]:
        """Extend the claims that are still held to `lease_for` from now, never past the task's deadline or progress deadline.

        One statement for all. Returns the ids of the tasks that were extended. A missing id is not yet lost (its own
        settle may hold the row): ask `held` before giving it up (D6). `heartbeat_at` becomes now; where `progressed`,
        `progress_at` does too and `progress` is stored.
        """

    def held(self, claims: Sequence[Claim]) -> set[str]:
        """The ids of those tasks whose claim is still as given (same version, same owner)."""

    def beat(self, server: Server) -> None:
        """Insert or update the server's row; `heartbeat_at` becomes now, `started_at` is kept from the first time."""

    def now(self) -> int:
        """The store's clock."""

    def close(self) -> None:
        """Give the way back; idempotent."""


class Store(UsageStore, EntityStore, Protocol):
    """One database. Methods may be called concurrently from one event loop.

    A database that cannot be reached raises `StoreUnavailable` (nothing is known about a commit in flight: send it
    again); one that refuses writes raises `StoreReadOnly`, `StoreBusy` or `StoreFull`.
    """

    url: str
    parallel_commits: int
    """How many `commit` calls at once are of use: 1 for a single writer."""
    seqs_in_order: bool
    """Whether moves are committed in the order of their seqs."""

    async def open(self, *, migrate: bool = True) -> None:
        """Connect and check the schema: bring it up to date if `migrate`, else raise `SchemaBehind`.

        Raises `SchemaTooNew` for a schema that this code does not know, and changes nothing then.
        """

    async def close(self) -> None:
        """Release everything; idempotent. Nothing committed is lost by not calling it."""

    async def migrate_to(self, version: int) -> None:
        """Bring the schema of an open store to exactly that version, up or down, atomically; 0 removes everything.

        Raises `SchemaTooNew` for a version that this code does not know, and changes nothing then. Nobody else may be
        using the database.
        """

    async def now(self) -> int:
        """The store's clock, in milliseconds."""

    # lanes

    async def lane_ids(self, lanes: Sequence[Lane]) -> dict[Lane, int]:
        """The ids of the lanes, made where they are missing. Lanes are never removed, and an id never changes."""

    async def list_lanes(self) -> dict[int, Lane]:
        """All lanes that there are."""

    # the queue

    async def claim(self, lane_ids: Sequence[int], owner_id: str, lease_for: int, limit: int) -> list[Task]:
        """Atomically take up to `limit` ready tasks of those lanes, raising each claim version by one.

        The best priority among the lanes' heads is taken (smaller first), then oldest due first, from one lane per
        call; so fewer than `limit` does not mean that there is no more, but none means that nothing was ready (or that
        others were taking it at that moment). No two callers receive the same (task, version). A task with a `wake_at`,
        an owner or a hold is never taken, nor is one of a paused lane; from a lane with a rate no more are taken than it
        has tokens (`next_token_for`). `claimed_at`, `heartbeat_at` and `progress_at` become now, and `wake_at`
        the end of the lease. No row in the log.
        """

    async def wake(self, limit: int, *, expire_leases: bool = True) -> Woken:
        """Make up to `limit` tasks ready whose `wake_at` has come: sleep, backoff and delay are over, or a lease ran out.

        A lease that ran out counts a takeover, raises `attempt` if the task was executing (state pending), and leaves
        a move `expire` in the log; the claim version stays, so that its holder can neither settle (no owner matches)
        nor be mistaken for the next one. With `expire_leases` false, owned tasks are left alone and `overdue`
        tells of them (D6). Concurrent callers
        never wake the same task twice.
        """

    async def extend(self, renewals: Sequence[Renewal], lease_for: int) -> dict[str, Extension]:
        """As `LeaseConnection.renew`, for holders whose attempts nobody else ends: never past the attempt's longest time either.

        A claim that is past one of these ends at once. Returns until when those that were extended hold, by task.
        """

    async def commit(self, units: Sequence[Unit]) -> list[Answer]:
        """Do each unit as a whole or not at all, independently of the others, durably, in one transaction if it can.

        - A guard that does not match changes nothing and is answered `claim_lost`; so does a unit on a task that an
          earlier unit of the same call has changed.
        - Sending a unit again that has been committed (the connection died during COMMIT) is answered `done` and
          changes nothing, for settlements under a `Claim`, and for new tasks (by id). A repeated `Seen` unit is answered
          `claim_lost`, as an operator's act may rightly be repeated only after looking again.
        - A run guard is judged first: if the run's version has moved on, the unit is answered `deferred`, unless its claims
          show that it was committed before.
        - A record that moved on is answered `deferred` likewise. A unit with a new run or record whose id is there already was
          sent before, and is `done`.
        - Message is told after all else of the call has been done.
        - New tasks whose id or live unique key (per namespace) is there already are not inserted; `existing` tells.
        - A task has at most one limit key, its own or else its lane's. Whatever the units do, afterwards no more tasks of a
          key are admitted (the over-limit bit of `hold` is clear) than its limit allows, and the next in line are: by
          priority, then due first. A task without an owner that sleeps, awaits something or is paused has given its place up;
          one whose lease ran out keeps it.
        - A unit without any guard is an entrance: `BacklogFull` if its tasks raise the ready ones of a lane over its cap,
          `ListDraining` if it has new tasks for a list that takes none. What settles or advances is never refused so.
        - A new task with an idempotency key that stands for another (live, finished or pruned) is not inserted, until the
          key's time has passed; `same` tells. A key stands for the live task where its own was refused for its unique key.
        - If any unit raises, nothing of the call is done: the caller sends them one by one to find the culprit.
        """

    async def next_token_for(self, lane_ids: Sequence[int]) -> int | None:
        """Milliseconds until a claim may take from one of those lanes that has ready tasks and a rate; None if there is none."""

    # task lists, rates and limits: what operators say

    async def list_lists(self) -> list[TaskList]:
        """The lists that something was said about; all others have the defaults."""

    async def set_list(
        self,
        namespace: str,
        task_list: str,
        *,
        paused: bool | None = None,
        accepting: bool | None = None,
        no_handler: str | None = None,
    ) -> tuple[int, ...]:
        """Change what is not None, for all lanes of the list, also those made later; the lanes that may have work now."""

    async def list_lane_rules(self) -> list[LaneRule]:
        """All lanes, and what was said about them."""

    async def set_rate(self, lane_id: int, rate: float | None, burst: int | None) -> None:
        """From now on take no more than `rate` tasks a second, and `burst` at once; None takes the rate away."""

    async def set_backlog_limit(self, lane_id: int, backlog_limit: int | None) -> None:
        """From now on refuse new tasks over so many ready ones; None takes the cap away."""

    async def list_limits(self, namespace: str) -> list[Limit]:
        """All limits of the namespace, with how many tasks are admitted and wait."""

    async def list_admitted(self, namespace: str, key: str, limit: int) -> list[str]:
        """The ids of up to `limit` admitted tasks of the key."""

    async def set_limit(self, namespace: str, key: str, max_running: int | None) -> tuple[int, ...]:
        """An operator's limit of the key; None takes it away. Returns lanes in which that made tasks ready.

        For the key of a handler (`handler:NAME`), all tasks of that name without a key get it, also those that are there
        already. Tasks that run when a limit is set or lowered go on; nothing else of the key starts until there is room.
        """

    # reads

    async def find_task(self, task_id: str) -> Task | None:
        """The task, live or finished."""

    async def find_finished(self, task_ids: Sequence[str]) -> list[Task]:
        """Those of the tasks that are finished."""

    async def list_tasks(self, which: TaskFilter, limit: int) -> list[Task]:
        """Up to `limit` tasks, live and finished, newest first (by id)."""

    async def list_depths(self) -> list[LaneDepth]:
        """The depth of every lane that has a live task."""

    async def count_finished(self) -> dict[str, int]:
        """Finished tasks by state."""

    # events

    async def list_events(self, after_seq: int, until_seq: int, limit: int) -> list[Event]:
        """Up to `limit` moves with a seq after the one and up to the other, in the order of seq, as of one moment.

        Where `seqs_in_order`, a move that is seen has none before it that is still to come. Elsewhere one may come later,
        up to 15 s (D9). Numbers without a move are normal everywhere.
        """

    async def find_last_seq(self) -> int:
        """The last number that was given to a move, whether that is committed or not."""

    async def tally(self, after_seq: int, until_seq: int) -> list[Tally]:
        """How often tasks made each move within each minute, of the moves with a seq after the one and up to the other.

        Reads all of these, so callers bound the distance. Moves of tasks that have been pruned are not among them.
        """

    # dead letters

    async def list_dead(self, which: DeadFilter, limit: int) -> list[Task]:
        """Up to `limit` failed tasks, the last to fail first (by seq, downwards from `until_seq`)."""

    async def walk_dead(self, which: DeadFilter, limit: int) -> list[DeadLetter]:
        """Up to `limit` failed tasks, the first to fail first (by seq, upwards from `after_seq`)."""

    async def group_dead(self, which: DeadFilter, limit: int) -> list[DeadGroup]:
        """Up to `limit` groups of failed tasks by (fingerprint, error code, name), the biggest first."""

    async def count_dead(self, which: DeadFilter) -> tuple[int, int, int]:
        """How many failed tasks there are, how many of them belong to runs, and the greatest seq among them (0 for none)."""

    async def list_moves(self, entity_id: str) -> list[Move]:
        """The entity's moves in order of version; a finished task's end is the last of them."""

    async def list_histories(self, after_id: str | None, limit: int) -> list[History]:
        """The histories of up to `limit` tasks, runs and records with an id after `after_id`, in order of id, each as of one
        moment.
        """

    # runs

    async def find_run(self, run_id: str) -> Run | None:
        """The run."""

    async def find_finished_runs(self, run_ids: Sequence[str]) -> list[Run]:
        """Those of the runs that are finished."""

    async def list_runs(self, which: RunFilter, limit: int) -> list[Run]:
        """Up to `limit` runs, newest first (by id)."""

    async def count_runs(self, namespace: str) -> dict[str, int]:
        """Runs of the namespace by state."""

    async def count_matching_runs(self, which: RunFilter) -> dict[str, int]:
        """Runs that fit the filter, by state."""

    async def load_steps(
        self, run_id: str, near: Sequence[str] = (), rows: Sequence[str] = (), children_of: Sequence[str] = ()
    ) -> list[Step]:
        """Of the run: the steps `near`, their ancestors, and all children of these that are no items of a foreach; the
        steps `rows`; all children of the steps `children_of`. Each once, in no order.
        """

    async def list_inbox(self, run_id: str, limit: int) -> list[Step]:
        """Up to `limit` steps of the run that have something in their inbox."""

    async def list_steps(self, run_id: str, after_id: str | None, limit: int) -> list[Step]:
        """A page of the run's steps in order of id."""

    async def find_flow(self, flow_id: str) -> Flow | None:
        """The flow of that digest."""

    async def publish_flow(self, namespace: str, name: str, flow_id: str, actor: str) -> FlowVersion:
        """Give the flow the next version of the name; publishing what is the newest version already changes nothing."""

    async def find_flow_version(self, namespace: str, name: str, version: int | None = None) -> FlowVersion | None:
        """A version of a published flow, the newest by default."""

    async def list_flow_versions(self, namespace: str, name: str | None = None) -> list[FlowVersion]:
        """All versions of one name, or the newest version of every name."""

    async def find_blobs(self, digests: Sequence[str]) -> dict[str, str]:
        """The big values that there are, by digest."""

    # retention

    async def find_prunable(self, rules: Rules, cursor: str | None, limit: int, *, count: bool = False) -> PrunePage:
        """Look at the next `limit` ends of the namespace, in the order in which they came, for trees to prune.

        A tree may be pruned when it has no live task and no unfinished run, and all that it has is past its time. With
        `count`, `tasks` and `trees` are told. The walk ends where nothing can be past its time any more.
        """

    async def prune_trees(self, rules: Rules, roots: Sequence[str], limit: int) -> Pruned:
        """Remove the trees, in one transaction, but no more than about `limit` rows: call again while there is `more`.

        Trees that may not be pruned (any more) are left alone, whole. Runs go last, so that what a crash leaves of a tree
        is found by the next walk. A big value goes with the last tree that uses it. Records, mail and outcomes of effects go
        with their tree.
        """

    async def set_keep(self, namespace: str, task_list: str, completed_for: int | None, failed_for: int | None) -> None:
        """From now on keep what ends in the list for so long; None means as the defaults say."""

    async def prune_rest(self, limit: int, keep_servers_for: int, keep_records_for: int) -> tuple[int, int, int]:
        """Remove up to `limit` deduplication keys that are past their time, servers not heard of for so long, and up to `limit`
        records of no tree that ended so long ago, with their moves; how many of each.
        """

    async def compact(self, *, whole: bool = False) -> int:
        """Give free space back to the system, in a short step, or `whole` in a long one; bytes given back, 0 when done.

        A store that does this by itself does nothing; `whole` raises `Unsupported` there.
        """

    # agents

    async def find_step(self, step_id: str) -> Step | None:
        """The step of that id, of whatever run."""

    async def list_handlers(self, namespace: str) -> list[HandlerRegistration]:
        """The handler registrations of the namespace, by name."""

    async def save_handler(self, namespace: str, registration: HandlerRegistration) -> None:
        """Insert the registration, or replace the one of that facet; `created` is kept from the first time, `updated` is now."""

    async def delete_handler(self, namespace: str, facet_name: str) -> bool:
        """Remove the registration; False if there was none."""

    # servers and lines

    async def list_servers(self) -> list[Server]:
        """All servers that have ever beaten and were not pruned, newest first."""

    async def save_server(self, server: Server) -> None:
        """Insert or update the server's row, as `LeaseConnection.beat` does."""

    async def touch_servers(self, touches: Sequence[Touch]) -> list[Server]:
        """Note in one statement that servers are alive; the rows of those that are there and had not stopped, as they are now.

        A server is named once in a call.
        """

    async def append_lines(self, lines: Sequence[LogLine]) -> None:
        """Store what handlers wrote. Not fenced, not in any order with commits."""

    async def list_lines(self, task_id: str, limit: int) -> list[LogLine]:
        """The task's last `limit` lines, oldest first."""

    async def list_run_lines(self, run_id: str, limit: int) -> list[LogLine]:
        """The last `limit` lines about a run: those of its tasks and what its flow logged, in the order of writing."""

    async def page_run_lines(
        self, run_id: str, limit: int, before: int | None = None, after: int | None = None
    ) -> list[tuple[int, LogLine]]:
        """Lines about a run with their numbers, in the order of writing: the first `limit` after that number, or else the last
        `limit` before that one (by default the last ones of all).
        """

    # signals: hints only, correctness never depends on them

    async def subscribe(self, heard: Callable[[tuple[int, ...]], None]) -> Callable[[], None]:
        """Call `heard` (on this event loop) soon after tasks became ready in those lanes, in this or another process.

        An empty tuple means "anything may have happened": look at all. `LATER` among them means that something was stored that
        will be due. Returns the way to stop it.
        """

    async def notify(self, lane_ids: Sequence[int]) -> None:
        """Tell all subscribers of this database; called after a commit, coalesced by the caller, may be lost."""

    def lease_connection(self) -> LeaseConnection:
        """A new way to renew leases, for one thread; made in any thread, used in one."""

    # health

    async def describe(self) -> dict[str, object]:
        """What the store is: kind, version of the library or server, schema version, sizes."""

    async def overdue_for(self) -> int:
        """For how many milliseconds the first due `wake_at` has been due, 0 for none: one look at an index."""

    async def health(self) -> Health:
        """How it is doing, for people; may take seconds on a big store."""

    async def backup(self, path: str) -> int:
        """Copy the store as it is at this moment into a new file, while it is used; its bytes.

        Refuses a path where something is. A store that has tools of its own for that raises `Unsupported`, which names them.
        """
