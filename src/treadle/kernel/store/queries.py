"""Parameters and results of the store's queries: filters, pages, and counts.

Instants and durations are milliseconds, by the store's clock.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from treadle.kernel.store.units import Seen
from treadle.model.clock import LATEST_AT
from treadle.model.names import QueueKey
from treadle.model.runs import ActivityKind
from treadle.model.tasks import Claim, Task, Transition

# --- reads ---


class Place(NamedTuple):
    """The place of a run or a task in lists, which are sorted by creation time, then id, newest first."""

    created_at: int
    id: str


NEWEST = Place(2**62, "ffffffff-ffff-ffff-ffff-ffffffffffff")
"""The position before all others."""


@dataclass(frozen=True, slots=True)
class Woken:
    """The result of `wake`: the number of tasks made ready, of expired leases among them, their queues, and the next due time."""

    count: int
    expired: int
    queue_ids: tuple[int, ...]
    next_for: int | None
    """Milliseconds until the next `wake_at` in the store, or None when there is none; 0 when more is due now."""
    now: int = field(default=0, compare=False)
    """The store's clock at that time."""
    overdue: bool = False
    """Whether a call that expires no leases found owned tasks with an expired lease."""
    ready: bool = False
    """Whether a call with `find_ready` found a task that was ready before it."""
    rated: bool = False
    """Whether a limit may have a rate: the next start may be due sooner once a task with a limit key is claimed."""


class Renewal(msgspec.Struct, frozen=True):
    """A request to keep a claim; `progress` is JSON, and `progressed` means that the handler reported progress."""

    claim: Claim
    progressed: bool = False
    progress: str | None = None


class LeaseExtension(NamedTuple):
    """The new end of an extended claim, and the store's clock at that time."""

    until_at: int
    now: int


class Touch(msgspec.Struct, frozen=True):
    """A server's heartbeat: `handled` and `failed` are added to its counters; the other fields replace its values if given."""

    server_id: str
    state: str | None = None
    handled: int = 0
    failed: int = 0
    running: int | None = None


class Membership(msgspec.Struct, frozen=True):
    """The answer to a server's heartbeat."""

    others: int
    """Other servers that are alive and that can be seen to die."""
    lost_by: str | None = None
    """The evidence by which others had taken this server for dead."""


class Sighting(msgspec.Struct, frozen=True):
    """A server that has not ended, as another one sees it in the store."""

    server_id: str
    name: str
    process: str | None
    silent_for: int
    """Milliseconds since its last heartbeat."""
    beat_every_for: int
    has_session: bool | None = None
    """Whether it still has its session with the database; None if that is not known."""


class EntityHistory(msgspec.Struct, frozen=True):
    """All transitions of one entity, and the state and version of its row, for `verify`."""

    entity: str
    entity_id: str
    state: str
    version: int
    transitions: tuple[Transition, ...]


class TransitionEvent(msgspec.Struct, frozen=True):
    """A transition, and the namespace of its entity."""

    namespace: str | None
    transition: Transition
    name: str | None = None
    """The name of its record, where changes by operators are listed."""


class TaskFilter(msgspec.Struct, frozen=True):
    """The tasks to list; None means any. `states` are shown states (including `running` and `paused`)."""

    states: tuple[str, ...] = ()
    namespace: str | None = None
    kind: str | None = None
    task_list: str | None = None
    name: str | None = None
    run_id: str | None = None
    before_id: str | None = None
    """Only tasks listed after this one: the cursor of the next page."""
    held: bool = False
    """Only tasks with an owner: running, or being polled."""
    before: Place | None = None
    """Only tasks listed after this position; replaces `before_id`."""


class DeadLetterFilter(msgspec.Struct, frozen=True):
    """The dead letters (failed tasks) to select; None means any. Instants are by the store's clock."""

    namespace: str | None = None
    kind: str | None = None
    task_list: str | None = None
    name: str | None = None
    error_code: str | None = None
    fingerprint: str | None = None
    failed_after: int | None = None
    failed_before: int | None = None
    after_seq: int | None = None
    """Only tasks with a greater seq, and only up to `until_seq`: a walk from one to the other visits each task once."""
    until_seq: int | None = None

    @property
    def by_queue_alone(self) -> bool:
        """Whether the filter selects by queue only: then an index alone gives the count."""
        others = (self.error_code, self.fingerprint, self.failed_after, self.failed_before, self.after_seq, self.until_seq)
        return all(condition is None for condition in others)


class DeadLetterRef(msgspec.Struct, frozen=True):
    """A reference to a dead letter, without its values, for bulk operations."""

    seen: Seen
    seq: int
    root_id: str
    run_id: str | None


class DeadLetterGroup(msgspec.Struct, frozen=True):
    """Dead letters with one fingerprint; `last_id` is the most recent failure."""

    fingerprint: str | None
    error_code: str | None
    name: str
    count: int
    of_runs: int
    """The number of them that belong to runs, and are retried there."""
    first_at: int
    last_at: int
    last_id: str
    first_owner_id: str | None
    """The worker of the first failure."""


class RunFilter(msgspec.Struct, frozen=True):
    """The runs to list; None (and an empty tuple) means any. Instants are by the store's clock."""

    states: tuple[str, ...] = ()
    namespace: str | None = None
    workflow: str | None = None
    flow_ids: tuple[str, ...] = ()
    before_id: str | None = None
    """Only runs listed after this one: the cursor of the next page."""
    kind: str | None = None
    task_list: str | None = None
    root_id: str | None = None
    created_after: int | None = None
    """Created at this instant or later."""
    created_before: int | None = None
    search: str | None = None
    """Lower-case text to find in the workflow's name or the idempotency key, or at the start of the id."""
    activity: int | None = None
    """The rank of an activity (`model.activity`): only unfinished runs that show it."""
    before: Place | None = None
    """Only runs listed after this position; replaces `before_id`."""


class FailedRun(NamedTuple):
    """A failed run; `error` is JSON text."""

    id: str
    workflow: str
    error: str | None
    finished_at: int


LATEST_FAILURE = FailedRun("ffffffff-ffff-ffff-ffff-ffffffffffff", "", None, LATEST_AT)
"""Comes after every failed run."""


class TreeTask(NamedTuple):
    """A task of a tree, without its values; `state` is `running` while it has an owner."""

    id: str
    kind: str
    name: str
    run_id: str | None
    state: str
    created_at: int
    claimed_at: int | None
    finished_at: int | None


class OpenWork(msgspec.Struct, frozen=True):
    """The live tasks of a run with one activity: their number, the first of them, and its open approval or external job."""

    activity: ActivityKind
    count: int
    task: Task
    record_id: str | None


class StepTask(msgspec.Struct, frozen=True):
    """The fields of a step's live task from which the state of the step follows."""

    step_id: str
    state: str
    blocked_by: int
    owner_id: str | None
    claimed_at: int | None
    attempt: int


class FinishedCounts(NamedTuple):
    """The numbers of finished tasks by state."""

    by_state: dict[str, int]
    exact: bool = True
    """False: estimated from a sample."""


class QueueDepth(msgspec.Struct, frozen=True):
    """The number of live tasks of a queue. `oldest_due_at` is the due time of the task that has been ready longest."""

    queue_id: int
    queue: QueueKey
    ready: int
    running: int
    waiting: int
    blocked: int
    oldest_due_at: int | None
    paused: int = 0
    """Those that are paused one by one."""


# --- retention ---


class Rules(msgspec.Struct, frozen=True):
    """Retention times in milliseconds; a list's own times (`lists.keep_*_for`) take precedence.

    `keep_failed_for` applies to failed tasks and runs, `keep_completed_for` to all other ends.
    """

    namespace: str
    keep_completed_for: int
    keep_failed_for: int


class PrunePage(msgspec.Struct, frozen=True):
    """Trees that may be pruned, from one page of a scan; `cursor` starts the next page, None at the end."""

    roots: tuple[str, ...]
    cursor: str | None
    tasks: int = 0
    """Finished tasks of these trees on this page."""
    trees: int = 0
    """Trees with their first member on this page: the whole scan counts each tree once."""


class Pruned(msgspec.Struct, frozen=True):
    """The number of removed rows; `more` means that the call reached its limit before it removed all trees."""

    trees: int = 0
    tasks: int = 0
    transitions: int = 0
    lines: int = 0
    runs: int = 0
    steps: int = 0
    blobs: int = 0
    records: int = 0
    outcomes: int = 0
    chunks: int = 0
    """Of streams."""
    more: bool = False
