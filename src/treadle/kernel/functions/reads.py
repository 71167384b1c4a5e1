"""Steps of functions in the display form of all runs, steps in progress, and the waits of a suspended function. Pure.

Steps in progress are noted in the progress of the function's task while they last longer than a second; the note is valid for one
claim. A parked function leaves the waits that can continue it in its task's checkpoint.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from treadle.evaluator.records import StepError, StepRow
from treadle.evaluator.states import State, StepKind
from treadle.kernel.functions.steps import ASK, CALL, EFFECT, RESULT, SLEEP, STEP, UPDATE, WAIT, Recorded
from treadle.kernel.queue.why import Reason
from treadle.model.clock import as_text
from treadle.model.errors import UnreadableValue
from treadle.model.names import FUNCTION
from treadle.model.runs import RANKS, Doing
from treadle.model.states import StepState
from treadle.model.stored import Stored, StoredRow, convert, plain
from treadle.model.tasks import Task
from treadle.model.values import Json, decode, decode_object, encode

NAMED = 3
"""Number of waits named in a reason."""

_STATES = {StepState.COMPLETED.value: State.STATEMENT_COMPLETE, StepState.FAILED.value: State.STATEMENT_ERROR}


class FunctionStepRow(StepRow, kw_only=True):
    """A step of a function: `facet` is its kind, `returns` holds its value as `value`."""

    shown_path: str = ""
    about: str = ""
    traceback: str | None = None
    shown_state: str = ""
    began_at: int | None = None
    ended_at: int | None = None

    @property
    def is_step(self) -> bool:
        """Always true."""
        return True

    @property
    def status(self) -> StepState:
        """The displayed state."""
        return StepState(self.shown_state)

    @property
    def path(self) -> str:
        """The name, prefixed by its gather position and branch: `4[2].charge`."""
        return self.shown_path


def shown_row(recorded: Recorded, run_id: str) -> StepRow:
    """Convert a recorded step to its display form."""
    path = path_of(recorded)
    error = None
    if recorded.error is not None:
        stored = recorded.error
        error = StepError(
            message=stored.get("message", ""),
            type=stored.get("type") or stored.get("code", "failed"),
            path=path,
            step_id=recorded.id,
        )
    return FunctionStepRow(
        id=recorded.id,
        run_id=run_id,
        place=recorded.place,
        statement_id=recorded.place,
        name=recorded.name,
        kind=StepKind.STEP,
        facet=recorded.kind,
        state=_STATES.get(recorded.state, State.EVENT_TRANSMIT),
        ordinal=recorded.ordinal,
        depth=recorded.place.count("."),
        returns={} if recorded.value is None else {"value": recorded.value},
        error=error,
        task_id=recorded.task_id,
        shown_path=path,
        about=recorded.about or "",
        traceback=(recorded.error or {}).get("traceback"),
        shown_state=recorded.state or StepState.COMPLETED,
        began_at=recorded.began_at,
        ended_at=recorded.ended_at,
    )


def path_of(recorded: Recorded) -> str:
    """The displayed path of a step."""
    parts = recorded.place.split(".")
    scopes = "".join(f"{parts[index]}[{parts[index + 1]}]." for index in range(0, len(parts) - 1, 2))
    return f"{scopes}{recorded.name}"


def is_suspended(task: Task) -> bool:
    """Whether it is a function's own task, parked while the whole function waits."""
    return task.kind == FUNCTION and task.owner_id is None and task.wake_at is not None and task.error is None and not task.hold


def why_suspended(waiting: Sequence[Recorded], reasons: Mapping[str, str], unserved: str | None = None) -> Reason:
    """The reason for a suspended function, from its unfinished steps and, by task, the reasons of its child tasks.

    `unserved` reports that no live worker can continue it.
    """
    alike: dict[tuple[str, str, object], list[Recorded]] = {}
    for each in waiting:
        task_id = each.task_id or ""
        key = reasons.get(task_id, "").replace(task_id, "") or (each.wake_at, (each.error or {}).get("message"))
        alike.setdefault((each.kind, each.name, key), []).append(each)
    shown = list(alike.values())[:NAMED]
    waits = [
        _waits_for(steps[0], reasons.get(steps[0].task_id or "")) + (f" (and {len(steps) - 1} more like it)" if steps[1:] else "")
        for steps in shown
    ]
    more = len(waiting) - sum(map(len, shown))
    rest = (f"; and {more} more" if more else "") + (f"; {unserved}" if unserved else "")
    return Reason("suspended", "waits for " + "; ".join(waits) + rest)


def _waits_for(step: Recorded, reason: str | None) -> str:
    until = "" if step.wake_at is None else f" until {as_text(step.wake_at)}"
    because = f": {reason}" if reason else ""
    match step.kind:
        case kind if kind == SLEEP:
            return f"a timer{until}"
        case kind if kind == WAIT:
            return f"the signal {step.name}{until}"
        case kind if kind == UPDATE:
            return f"the update {step.name}{until}"
        case kind if kind == CALL:
            return f"{path_of(step)} (task {step.task_id}){because}"
        case kind if kind == ASK:
            return f"a decision on {path_of(step)} (task {step.task_id}){because}"
        case kind if kind == RESULT:
            return f"the run {step.task_id} that it started"
        case kind if kind in (STEP, EFFECT):
            message = (step.error or {}).get("message", "")
            return f"the next attempt of {path_of(step)} at {as_text(step.wake_at)}: {message}"
        case _:
            return path_of(step)


_STEPS, _CLAIM = "_steps", "_claim"


class StepInProgress(Stored, frozen=True, kw_only=False):
    """A step with executing code."""

    id: str
    place: str
    kind: str
    name: str
    ordinal: int
    began_at: int
    attempt: int
    about: str | None = None

    def as_recorded(self) -> Recorded:
        """The step as its row would show it."""
        return Recorded(
            id=self.id,
            place=self.place,
            kind=self.kind,
            name=self.name,
            ordinal=self.ordinal,
            state=StepState.RUNNING,
            began_at=self.began_at,
            about=self.about,
        )


def note_steps(progress: str | None, claim_version: int, steps: Sequence[StepInProgress]) -> str:
    """The progress of a task, with the steps that its function executes; null if there is neither."""
    said: dict[str, Any] = without_steps(decode(progress)) or {}
    if steps:
        said |= {_STEPS: [plain(step) for step in steps], _CLAIM: claim_version}
    return encode(said or None)


def read_steps(task: Task) -> list[StepInProgress]:
    """The steps that the function of this task executes now."""
    if task.kind != FUNCTION or task.owner_id is None or task.progress is None:
        return []
    said: dict[str, Any] = decode(task.progress) or {}
    if said.get(_CLAIM) != task.claim_version:
        return []
    return [convert(StepInProgress, each) for each in said.get(_STEPS, ())]


def without_steps(progress: Json) -> Json:
    """The progress that user code reported."""
    if not isinstance(progress, dict) or _STEPS not in progress:
        return progress
    return {name: value for name, value in progress.items() if name not in (_STEPS, _CLAIM)} or None


_DOING = {
    SLEEP: Doing.SLEEPING,
    WAIT: Doing.WAITING_FOR_SIGNAL,
    UPDATE: Doing.WAITING_FOR_SIGNAL,
    RESULT: Doing.WAITING_FOR_CHILD,
    STEP: Doing.RETRYING,
    EFFECT: Doing.RETRYING,
}
"""By kind of step; calls, approvals and external jobs have tasks of their own."""


class WaitNote(StoredRow, kw_only=True):
    """The waits of a parked function; `name`, `until` and `child_id` are those of the most important one."""

    name: str | None = None
    until: int | None = None
    child_id: str | None = None
    wake_at: int | None = None
    """When the first wait with a time ends; None: only a message continues the function."""
    counts: dict[str, int] = msgspec.field(default_factory=dict)


def note_waits(waits: Iterable[Recorded]) -> tuple[Doing, str]:
    """Return the activity of a function with these waits, and its note as JSON."""
    counts: Counter[Doing] = Counter()
    first: tuple[tuple[int, float], Recorded] | None = None
    wake_at: int | None = None
    for each in waits:
        doing = _DOING.get(each.kind, Doing.WAITING_FOR_TASK)
        counts[doing] += 1
        at = each.wake_at
        if at is not None:
            wake_at = at if wake_at is None else min(at, wake_at)
        rank = (RANKS[doing], float("inf") if at is None else at)
        if first is None or rank < first[0]:
            first = rank, each
    body: dict[str, Any] = {"wake_at": wake_at, "counts": dict(counts)}
    if first is None:
        return Doing.WAITING_FOR_TASK, encode(body)
    chosen = first[1]
    doing = _DOING.get(chosen.kind, Doing.WAITING_FOR_TASK)
    body |= {"name": chosen.name, "until": chosen.wake_at, "child_id": chosen.task_id if chosen.kind == RESULT else None}
    return doing, encode(body)


def read_waits(task: Task) -> WaitNote | None:
    """The note of a parked function; None for every other task, for one that an older version parked, and if it is damaged."""
    if task.kind != FUNCTION or task.doing is None or task.owner_id is not None or task.wake_at is None:
        return None
    if task.checkpoint is not None:
        with suppress(UnreadableValue):
            return convert(WaitNote, decode_object(task.checkpoint))
    return None


def shown_wake_at(task: Task) -> int | None:
    """When the task continues by itself, for display: None for a function that only a message continues."""
    note = read_waits(task)
    return task.wake_at if note is None else note.wake_at
