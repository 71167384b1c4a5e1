"""Units: the writes that a store applies atomically, each with its guard and the rows that follow from it.

A service reads, decides in pure code, and hands `Store.commit` complete units. The guard names the claim, or the version
that the service saw. The store applies a unit completely or not at all. Durations are milliseconds, by the store's clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple

import msgspec

from treadle.kernel.store.records import EntityRow
from treadle.model.runs import Flow, Run, Step
from treadle.model.tasks import Claim, NewTask, Task
from treadle.model.values import encode

DOUBTFUL_TRANSITIONS = frozenset({"release", "retry", "fail", "cancel", "pause"})
"""Transitions that may end a claim during an effect, whose outcome is then unknown (`PutOutcome`); so may `expire`."""

# --- guards: the condition of a unit ---


class Seen(msgspec.Struct, frozen=True):
    """The version of a task (live or finished) that an operator saw: it has made exactly these transitions and claims."""

    task_id: str
    version: int
    claim_version: int

    @classmethod
    def of(cls, task: Task) -> Seen:
        """The guard of the task as it was read."""
        return cls(task.id, task.version, task.claim_version)


class RunGuard(msgspec.Struct, frozen=True, gc=False):
    """The run is still at `version`; the unit raises it by one. If the version has moved on, the unit is `deferred`.

    None means any version, for decisions that depend on the run's state alone, which a `RunTransition` names. `live`: the unit is
    deferred also if the run has ended.
    """

    run_id: str
    version: int | None
    live: bool = False


# --- settlements: the next state of the guarded task ---


class Finish(msgspec.Struct, frozen=True, gc=False):
    """End the task: its row moves from the live table to the finished one, and is the log entry for `transition`."""

    transition: str
    state: str
    result: str | None = None
    error: str | None = None
    error_code: str | None = None
    fingerprint: str | None = None
    actor: str | None = None
    """The actor, if it is not the owner of the claim."""
    limited: bool = False
    """Whether the task had a limit key when it was claimed: only the speed of the commit depends on it."""


class Requeue(msgspec.Struct, frozen=True, gc=False):
    """Release the task with these new values; it stays live without an owner, and the log records `transition`.

    `delay` None makes it ready immediately, otherwise it becomes ready that much later by the store's clock. `blocked_by`
    replaces the task's bits except the run-paused one, which only `BlockRun` changes (a task that awaits an external job has
    none, D20), and the task-paused one, which only the transition `resume` clears. A requeue that `stays` changes only the
    bits: the owner keeps its claim and its lease. A `quiet` requeue writes no row to the log and counts as no transition: it
    is for frequent events such as polls. Resending it after it was committed yields `claim_lost`, because it leaves no trace.
    """

    transition: str
    state: str
    attempt: int
    failures: int
    takeovers: int
    blocked_by: int = 0
    delay: int | None = None
    checkpoint: str | None = None
    error: str | None = None
    actor: str | None = None
    data: str | None = None
    quiet: bool = False
    activity: str | None = None
    """The activity of a suspended function (`model.activity`)."""
    stays: bool = False
    keeps_slot: bool = False
    """The task keeps its slot under its limit while it waits."""


class Keep(msgspec.Struct, frozen=True):
    """Keep the task claimed and replace its checkpoint; logs `transition` if given."""

    checkpoint: str | None
    transition: str | None = None
    data: str | None = None


class Redrive(msgspec.Struct, frozen=True):
    """Make a finished task live again (an operator's retry): its end stays in the log, followed by `transition`.

    The counters restart, `failures` from the given value; `attempt` continues (one more if the task was ever claimed).
    `payload` None keeps the old one; `data` is that of the transition. `delay` None makes it ready immediately, otherwise it
    becomes ready that much later.
    """

    transition: str
    actor: str
    payload: str | None = None
    failures: int = 0
    delay: int | None = None
    data: str | None = None


class Discard(msgspec.Struct, frozen=True):
    """Replace the end of a finished task (a dead letter is discarded): the old end moves to the log.

    Result, error, error code and fingerprint stay; `finished_at` becomes now.
    """

    transition: str
    state: str
    actor: str


Settlement = Finish | Requeue | Keep | Redrive | Discard


# --- rows of runs ---


class PutRun(msgspec.Struct, frozen=True):
    """Insert a new run with 0 transitions; a `RunTransition` usually follows.

    If the id exists, or another run has the idempotency key (then `existing` names it), the store writes nothing of the unit.
    """

    run: Run


class RunTransition(msgspec.Struct, frozen=True):
    """Transition the run to another state, with a row in the log, and set `outputs`, `error` and `failed_step_id`."""

    run_id: str
    transition: str
    from_state: str
    to_state: str
    actor: str | None = None
    outputs: str | None = None
    error: str | None = None
    failed_step_id: str | None = None
    data: str | None = None


class PutSteps(msgspec.Struct, frozen=True, gc=False):
    """Insert or replace steps of one run (a replaced step keeps its inbox); `added` of them are new."""

    run_id: str
    steps: tuple[Step, ...]
    added: int


class PutInbox(msgspec.Struct, frozen=True):
    """Leave the result of a step's task for the next advance of the run; a full inbox keeps its content."""

    step_id: str
    inbox: str


class ClearInbox(msgspec.Struct, frozen=True):
    """Empty the inboxes of these steps, which this unit consumed."""

    step_ids: tuple[str, ...]


class PutFlow(msgspec.Struct, frozen=True):
    """Insert a flow unless it exists; `anew` replaces the sources and the program of an existing one."""

    flow: Flow
    anew: bool = False


class PutBlob(msgspec.Struct, frozen=True):
    """Store a large value once and record the tree that uses it; it is pruned with the last such tree."""

    digest: str
    value: str
    root_id: str


class BlockRun(msgspec.Struct, frozen=True):
    """Set or clear the run-paused bit of all live tasks of the run, except tasks that await an external job (D20)."""

    run_id: str
    blocked: bool


class CancelRunTasks(msgspec.Struct, frozen=True):
    """End all live tasks of the run as canceled, including claimed ones.

    With an `inbox`, only tasks of steps that are not in progress (never claimed, waiting for a retry, or awaiting an approval), and
    leave it in the empty inboxes of their steps.
    """

    run_id: str
    actor: str
    error: str
    inbox: str | None = None


class Dismiss(msgspec.Struct, frozen=True):
    """Take failed tasks of the run out of the dead letters: these, or all (None). They stay failed."""

    run_id: str
    task_ids: tuple[str, ...] | None = None


class LimitTask(msgspec.Struct, frozen=True):
    """Set the limit key of a live task: without an owner, it waits to be admitted. None removes the key and its place."""

    task_id: str
    key: str | None


class ReleaseKey(msgspec.Struct, frozen=True):
    """Remove the unique key of a live task; a new task of the same unit may have it."""

    task_id: str


class PutPayload(msgspec.Struct, frozen=True):
    """Replace the payload of a live task, and the inputs of the run that it executes."""

    task_id: str
    payload: str


class MetricRow(NamedTuple):
    """Counts to add to those of one step and series; both histograms as JSON."""

    step_for: int
    at: int
    namespace: str
    kind: str
    task_list: str
    name: str
    release: str
    started: int
    completed: int
    failed: int
    canceled: int
    retried: int
    taken_over: int
    waited_for: int
    depth: int
    oldest_for: int
    cost_micros: int
    tokens: int
    durations: str
    waits: str


class PutMetrics(msgspec.Struct, frozen=True):
    """Add roll-ups of the transitions after a seq and up to another, unless those after it are in the roll-ups already.

    Deletes the roll-ups of each step (milliseconds) that began before an instant.
    """

    after_seq: int
    until_seq: int
    rows: tuple[MetricRow, ...]
    before: tuple[tuple[int, int], ...]


class PutTags(msgspec.Struct, frozen=True):
    """Set tags of a run or a task (`entity`), in stored form (`model.tags`); nothing happens if it does not exist.

    A record keeps up to `KEPT_LIMIT` tags: once it has more, only existing ones change.
    """

    entity: str
    owner_id: str
    tags: tuple[tuple[str, str], ...]


Row = (
    LimitTask
    | PutRun
    | RunTransition
    | PutSteps
    | PutInbox
    | ClearInbox
    | PutFlow
    | PutBlob
    | BlockRun
    | CancelRunTasks
    | Dismiss
    | ReleaseKey
    | PutPayload
    | PutMetrics
    | PutTags
    | EntityRow
)


class Unit(msgspec.Struct, frozen=True, gc=False):
    """Writes that a store applies together or not at all.

    With a `Claim` guard, `settlement` is Finish, Requeue, Keep or None; with a `Seen` guard Finish or Requeue for a live task,
    or Redrive, Discard or None for a finished one. Without a guard there is no settlement, and the store writes the rows
    unconditionally. A unit with a claim and no settlement does not change its task: one call may contain several such units of
    one task. `also` are further tasks to settle with it, each with its guard, `run` is the run that it advances. With `fresh`,
    the store refuses the unit if an idempotency key of its tasks identifies another task: DEFERRED, with those tasks in `same`.
    With `exclusive`, the same holds for unique keys, with the live tasks that have them in `existing`.
    """

    guard: Claim | Seen | None = None
    settlement: Settlement | None = None
    tasks: tuple[NewTask, ...] = ()
    also: tuple[tuple[Claim | Seen, Settlement], ...] = ()
    run: RunGuard | None = None
    rows: tuple[Row, ...] = ()
    fresh: bool = False
    exclusive: bool = False


class Verdict(StrEnum):
    """The result of a unit."""

    DONE = "done"
    CLAIM_LOST = "claim_lost"
    DEFERRED = "deferred"


class UnitAnswer(msgspec.Struct, frozen=True):
    """The verdict on a unit, with details for the caller.

    `existing` maps each unique key that was taken to the live task that has it. `queue_ids` are the queues in which the unit
    made a task ready, and, whatever the verdict, those in which the commit had locked a ready task that claims skipped meanwhile.
    `lost` lists, for a unit with several claims, the tasks with a lost claim. `same` maps the id of each new task with a
    taken idempotency key to the task that it identifies. `run_paused` means that the claim stays (Keep, or no settlement) but the
    run was paused meanwhile: the worker should stop at its next opportunity. `is_signaled` means that
    the store has already signaled the queues, so that the caller need not `notify` of them.
    """

    verdict: Verdict
    existing: dict[str, str] = {}
    queue_ids: tuple[int, ...] = ()
    lost: tuple[str, ...] = ()
    same: dict[str, str] = {}
    run_paused: bool = False
    is_signaled: bool = False


DONE = UnitAnswer(Verdict.DONE)
CLAIM_LOST = UnitAnswer(Verdict.CLAIM_LOST)
DEFERRED = UnitAnswer(Verdict.DEFERRED)


def tag_rows(entity: str, owner_id: str, tags: Mapping[str, str]) -> tuple[Row, ...]:
    """Return the row that sets these tags, if there are any."""
    return (PutTags(entity, owner_id, tuple(tags.items())),) if tags else ()


def returned(task: Task, reason: str) -> Requeue:
    """Return a claimed task whose handler has not started to the queue: neither an attempt nor a takeover is counted."""
    return Requeue(
        "release",
        task.state,
        task.attempt,
        task.failures,
        task.takeovers,
        checkpoint=task.checkpoint,
        error=task.error,
        data=encode({"reason": reason}),
    )
