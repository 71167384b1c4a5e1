"""What is handed to a store to be written: units, each with its guard and the rows that follow from it.

A service reads, decides in pure code, and hands `Store.commit` complete units. A unit's guard says whose work this is, or what
was seen; it happens as a whole or not at all. Durations are milliseconds, by the store's clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import msgspec

from treadle.kernel.store.records import EntityRow
from treadle.model.runs import Flow, Run, Step
from treadle.model.tasks import Claim, NewTask

# --- guards: when a unit may happen ---


@dataclass(frozen=True, slots=True)
class Seen:
    """The task (live or finished) has made exactly `version` moves and `claim_version` claims: what an operator saw."""

    task_id: str
    version: int
    claim_version: int


class RunGuard(msgspec.Struct, frozen=True, gc=False):
    """The run is still at `version`; doing the unit raises it by one. A version that moved on is answered `deferred`.

    None is any version, for what is decided by the run's state alone: a `MoveRun` says which.
    """

    run_id: str
    version: int | None


# --- what becomes of the guarded task ---


class Finish(msgspec.Struct, frozen=True, gc=False):
    """The task ends: its row goes from the live table to the finished one, which is its log entry for `move`."""

    move: str
    state: str
    result: str | None = None
    error: str | None = None
    error_code: str | None = None
    fingerprint: str | None = None
    actor: str | None = None
    """Who did it, where that is not the owner of the claim."""


class Park(msgspec.Struct, frozen=True, gc=False):
    """The task lives on without an owner: all of these are its new values, and a row in the log says `move`.

    `wake_for` None makes it ready at once, else it is ready that much later by the store's clock. `hold` replaces the
    bits of the task's hold but for the run-paused one, which only `HoldRun` changes; a task that awaits an outside job has
    none (D20). A `quiet` one has no row in the log, and counts for no move: it is for what happens over and over, such as
    polls. Sending it again after it was committed is answered `claim_lost`, as nothing tells that it was.
    """

    move: str
    state: str
    attempt: int
    failures: int
    takeovers: int
    hold: int = 0
    wake_for: int | None = None
    checkpoint: str | None = None
    error: str | None = None
    actor: str | None = None
    data: str | None = None
    quiet: bool = False


@dataclass(frozen=True, slots=True)
class Keep:
    """The task stays claimed; only its checkpoint changes. No row in the log, unless `move` is given: then that is logged."""

    checkpoint: str | None
    move: str | None = None
    data: str | None = None


@dataclass(frozen=True, slots=True)
class Revive:
    """A finished task becomes live again (an operator's retry): its end stays in the log, and `move` follows it.

    The counters start anew, `failures` from what is given (attempt goes on from where it was: one more, if the task was ever
    taken). `payload` None keeps the old one. `wake_for` None makes it ready at once, else it is ready that much later.
    """

    move: str
    actor: str
    payload: str | None = None
    failures: int = 0
    wake_for: int | None = None


@dataclass(frozen=True, slots=True)
class Amend:
    """A finished task ends otherwise (a dead letter is discarded): its old end goes to the log, its row is the new one's entry.

    Result, error, error code and fingerprint stay; `finished_at` becomes now.
    """

    move: str
    state: str
    actor: str


Settlement = Finish | Park | Keep | Revive | Amend


# --- rows of runs ---


@dataclass(frozen=True, slots=True)
class PutRun:
    """A new run; one whose id is there already is left alone, one whose idempotency key is taken is named in `existing`.

    If it is not inserted for its key, nothing of the unit is done. Its moves so far are 0: a `MoveRun` usually follows.
    """

    run: Run


@dataclass(frozen=True, slots=True)
class MoveRun:
    """The run makes a move, with a row in the log; `outputs`, `error` and `failed_step_id` become these."""

    run_id: str
    move: str
    from_state: str
    to_state: str
    actor: str | None = None
    outputs: str | None = None
    error: str | None = None
    failed_step_id: str | None = None
    data: str | None = None


class PutSteps(msgspec.Struct, frozen=True, gc=False):
    """Steps of one run, each inserted, or replaced whole but for its inbox; `added` of them are new."""

    run_id: str
    steps: tuple[Step, ...]
    added: int


@dataclass(frozen=True, slots=True)
class PutInbox:
    """What a step's task came to, for whoever advances the run next; a step that has one already keeps it."""

    step_id: str
    inbox: str


@dataclass(frozen=True, slots=True)
class ClearInbox:
    """What was in these steps' inboxes has been taken in by this unit."""

    step_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PutFlow:
    """A flow; one that is there already is left alone."""

    flow: Flow


@dataclass(frozen=True, slots=True)
class PutBlob:
    """A big value, stored once, and the tree that uses it: it is pruned with the last of these."""

    digest: str
    value: str
    root_id: str


@dataclass(frozen=True, slots=True)
class HoldRun:
    """Set or clear the run-paused bit of all live tasks of the run, but for those that await an outside job (D20)."""

    run_id: str
    held: bool


@dataclass(frozen=True, slots=True)
class CancelRunTasks:
    """End all live tasks of the run as canceled, whoever holds them."""

    run_id: str
    actor: str
    error: str


Row = PutRun | MoveRun | PutSteps | PutInbox | ClearInbox | PutFlow | PutBlob | HoldRun | CancelRunTasks | EntityRow


class Unit(msgspec.Struct, frozen=True, gc=False):
    """What happens together or not at all.

    With a `Claim` guard, `settlement` is Finish, Park, Keep or None; with a `Seen` guard Finish or Park on a live task, or
    Revive or Amend on a finished one. Without a guard there is no settlement, and the rows are written unconditionally. A
    unit with a claim and no settlement leaves its task as it is: several such units of one task may go in one call.
    `also` are further claimed tasks settled with it, `run` the run that it advances.
    """

    guard: Claim | Seen | None = None
    settlement: Settlement | None = None
    tasks: tuple[NewTask, ...] = ()
    also: tuple[tuple[Claim, Finish], ...] = ()
    run: RunGuard | None = None
    rows: tuple[Row, ...] = ()


class Verdict(StrEnum):
    """What came of a unit."""

    DONE = "done"
    CLAIM_LOST = "claim_lost"
    DEFERRED = "deferred"


class Answer(msgspec.Struct, frozen=True):
    """`existing` names, for each unique key that was live already, the task that has it.

    `lane_ids` are the lanes in which the unit made a task ready; workers of these may want to look. `lost` are, of a unit
    with several claims, those that are no longer held. `same` names, for the id of each new task whose idempotency key stood
    for another already, that one. `held` says of a unit with a claim that stays (Keep, or no settlement) that its task was
    held meanwhile, as its run was paused: what executes it should stop at its next opportunity.
    """

    verdict: Verdict
    existing: dict[str, str] = {}
    lane_ids: tuple[int, ...] = ()
    lost: tuple[str, ...] = ()
    same: dict[str, str] = {}
    held: bool = False


DONE = Answer(Verdict.DONE)
CLAIM_LOST = Answer(Verdict.CLAIM_LOST)
DEFERRED = Answer(Verdict.DEFERRED)
