"""What a store is asked for, and what it finds: filters, pages, counts and the health of its tables.

Instants and durations are milliseconds, by the store's clock.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from treadle.kernel.store.units import Seen
from treadle.model.names import Lane
from treadle.model.tasks import Claim, Move

# --- reads ---


@dataclass(frozen=True, slots=True)
class Woken:
    """What a `wake` did: tasks made ready, how many of them by an expired lease, in which lanes, and what comes next."""

    count: int
    expired: int
    lane_ids: tuple[int, ...]
    next_for: int | None
    """Milliseconds until the next `wake_at` in the store, or None when there is none; 0 when more is due now."""
    now: int = field(default=0, compare=False)
    """The store's clock at that moment."""
    overdue: bool = False
    """Whether there were owned tasks whose lease had run out, which a call that expires no leases left alone."""


@dataclass(frozen=True, slots=True)
class Renewal:
    """A wish to keep a claim; `progress` is JSON, and `progressed` says that the handler gave a sign of life."""

    claim: Claim
    progressed: bool = False
    progress: str | None = None


class Extension(NamedTuple):
    """A claim that was extended: until when, and what the store's clock said then."""

    until_at: int
    now: int


@dataclass(frozen=True, slots=True)
class Touch:
    """A sign of life of a server: `handled` and `failed` are added to what it has, the others are put in place if given."""

    server_id: str
    state: str | None = None
    handled: int = 0
    failed: int = 0
    running: int | None = None


@dataclass(frozen=True, slots=True)
class History:
    """All moves of one entity and where its row stands, for `verify`."""

    entity: str
    entity_id: str
    state: str
    version: int
    moves: tuple[Move, ...]


class Tally(NamedTuple):
    """How often tasks of one kind made one move within one minute."""

    namespace: str
    kind: str
    minute_at: int
    """When the minute began."""
    move: str
    to_state: str
    times: int
    waited_for: int | None
    """The longest that one of them had been due when it was first taken, of those that ended with their first claim."""


@dataclass(frozen=True, slots=True)
class Event:
    """A move, and the namespace of who made it."""

    namespace: str | None
    move: Move


@dataclass(frozen=True, slots=True)
class TaskFilter:
    """Which tasks to list; None means any. `states` are shown states (`running` and `paused` among them)."""

    states: tuple[str, ...] = ()
    namespace: str | None = None
    kind: str | None = None
    task_list: str | None = None
    name: str | None = None
    run_id: str | None = None
    before_id: str | None = None
    """Only tasks with a smaller id: the cursor of the next page, as tasks are listed newest first."""


@dataclass(frozen=True, slots=True)
class DeadFilter:
    """Which dead letters (failed tasks); None means any. Instants are those of the store's clock."""

    namespace: str | None = None
    kind: str | None = None
    task_list: str | None = None
    name: str | None = None
    error_code: str | None = None
    fingerprint: str | None = None
    failed_after: int | None = None
    failed_before: int | None = None
    after_seq: int | None = None
    """Only with a greater seq, and only up to `until_seq`: a walk from one to the other meets none twice."""
    until_seq: int | None = None

    @property
    def by_lane_alone(self) -> bool:
        """Whether it asks for nothing but lanes: then an index knows how many there are."""
        others = (self.error_code, self.fingerprint, self.failed_after, self.failed_before, self.after_seq, self.until_seq)
        return all(each is None for each in others)


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """What it takes to operate a dead letter, without its values."""

    seen: Seen
    seq: int
    root_id: str
    run_id: str | None


@dataclass(frozen=True, slots=True)
class DeadGroup:
    """Dead letters with one fingerprint; `last_id` is the one that failed last."""

    fingerprint: str | None
    error_code: str | None
    name: str
    count: int
    of_runs: int
    """How many of them belong to runs, and are retried there."""
    first_at: int
    last_at: int
    last_id: str


@dataclass(frozen=True, slots=True)
class RunFilter:
    """Which runs to list; None (and an empty tuple) means any. Instants are those of the store's clock."""

    states: tuple[str, ...] = ()
    namespace: str | None = None
    workflow: str | None = None
    flow_ids: tuple[str, ...] = ()
    before_id: str | None = None
    kind: str | None = None
    task_list: str | None = None
    root_id: str | None = None
    created_after: int | None = None
    """Made then or later."""
    created_before: int | None = None
    search: str | None = None
    """Lower-case text in the name of the workflow or in the idempotency key, or the beginning of the id."""


@dataclass(frozen=True, slots=True)
class LaneDepth:
    """How much is in a lane now. `oldest_due_at` is that of the longest ready task."""

    lane_id: int
    lane: Lane
    ready: int
    running: int
    waiting: int
    held: int
    oldest_due_at: int | None


# --- retention ---


@dataclass(frozen=True, slots=True)
class Rules:
    """How long what has ended is kept, in milliseconds; a list's own rules (`lists.keep_*_for`) win over these.

    `keep_failed_for` is for failed tasks and runs, `keep_completed_for` for all other ends.
    """

    namespace: str
    keep_completed_for: int
    keep_failed_for: int


@dataclass(frozen=True, slots=True)
class PrunePage:
    """Trees that may be pruned, found on one stretch of a walk; `cursor` is where the next begins, None at the end."""

    roots: tuple[str, ...]
    cursor: str | None
    tasks: int = 0
    """Finished tasks of these trees on this stretch."""
    trees: int = 0
    """Trees whose first member is on this stretch: over the whole walk, each is counted once."""


@dataclass(frozen=True, slots=True)
class Pruned:
    """Rows that were removed; `more` says that the bound was reached before the trees were gone."""

    trees: int = 0
    tasks: int = 0
    moves: int = 0
    lines: int = 0
    runs: int = 0
    steps: int = 0
    blobs: int = 0
    records: int = 0
    outcomes: int = 0
    more: bool = False


# --- health ---


@dataclass(frozen=True, slots=True)
class TableHealth:
    """A table: bytes with its indexes, about how many rows and dead rows it has, and when it was last vacuumed."""

    name: str
    bytes: int
    rows: int | None = None
    dead_rows: int | None = None
    vacuumed_at: int | None = None


@dataclass(frozen=True, slots=True)
class Health:
    """How a store is doing; None where it has no such thing."""

    tables: tuple[TableHealth, ...]
    """The biggest first; none where measuring would take long."""
    overdue_for: int
    """For how long the first due `wake_at` has been due: nobody wakes, or waking lags."""
    versions: dict[str, str]
    settings: dict[str, str]
    bytes: int
    free_bytes: int | None = None
    wal_bytes: int | None = None
    oldest_snapshot_for: int | None = None
    snapshot_by: str | None = None
