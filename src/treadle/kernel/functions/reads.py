"""Steps of functions in the display form of all runs, and why a function is suspended. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from treadle.evaluator.records import StepError, StepRow
from treadle.evaluator.states import State, StepKind
from treadle.kernel.functions.steps import ASK, CALL, EFFECT, READ, RESULT, SLEEP, STEP, UPDATE, WAIT, Recorded
from treadle.kernel.queue.why import Reason
from treadle.model.clock import as_text
from treadle.model.names import FUNCTION
from treadle.model.states import StepState
from treadle.model.tasks import Task

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
    """Whether it is a function's own task, suspended while the whole function waits."""
    return (
        task.kind == FUNCTION
        and task.claim_version > 0
        and task.owner_id is None
        and task.wake_at is not None
        and task.error is None
        and not task.blocked_by
    )


def why_suspended(waiting: Sequence[Recorded], reasons: Mapping[str, str], unserved: str | None = None) -> Reason:
    """The reason for a suspended function, from its unfinished steps and, by task, the reasons of its child tasks.

    `unserved` reports that no live worker can continue it.
    """
    alike: dict[tuple[str, str, object], list[Recorded]] = {}
    for step in waiting:
        task_id = step.task_id or ""
        key = reasons.get(task_id, "").replace(task_id, "") or (step.wake_at, (step.error or {}).get("message"))
        alike.setdefault((step.kind, step.name, key), []).append(step)
    groups = list(alike.values())[:NAMED]
    waits = [
        _waits_for(steps[0], reasons.get(steps[0].task_id or "")) + (f" (and {len(steps) - 1} more like it)" if steps[1:] else "")
        for steps in groups
    ]
    more = len(waiting) - sum(map(len, groups))
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
        case kind if kind == READ:
            return f"entries of the stream {step.name} {step.about}"
        case kind if kind in (STEP, EFFECT):
            message = (step.error or {}).get("message", "")
            return f"the next attempt of {path_of(step)} at {as_text(step.wake_at)}: {message}"
        case _:
            return path_of(step)
