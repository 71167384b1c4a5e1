"""Steps of functions in the form in which interfaces show steps of all runs."""

from __future__ import annotations

from treadle.evaluator.records import StepError, StepRow
from treadle.evaluator.states import State, StepKind
from treadle.kernel.function_rows import Recorded
from treadle.model.states import StepState

_STATES = {StepState.COMPLETED.value: State.STATEMENT_COMPLETE, StepState.FAILED.value: State.STATEMENT_ERROR}


class FunctionStepRow(StepRow, kw_only=True):
    """A step of a function: `facet` is its kind, `returns` has its value as `value`."""

    shown_path: str = ""
    shown_state: str = ""

    @property
    def is_step(self) -> bool:
        """Whether it is a step: all of them are."""
        return True

    @property
    def status(self) -> StepState:
        """Its state."""
        return StepState(self.shown_state)

    @property
    def path(self) -> str:
        """Its name, after the gather and branch that it stands in: `4[2].charge`."""
        return self.shown_path


def shown_row(recorded: Recorded, run_id: str) -> StepRow:
    """A recorded step as it is shown."""
    path = path_of(recorded)
    error = None
    if recorded.error is not None:
        said = recorded.error
        error = StepError(
            message=said.get("message", ""), type=said.get("type") or said.get("code", "failed"), path=path, step_id=recorded.id
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
        shown_state=recorded.state or StepState.COMPLETED,
    )


def path_of(recorded: Recorded) -> str:
    """Where a step stands, for people."""
    parts = recorded.place.split(".")
    scopes = "".join(f"{parts[index]}[{parts[index + 1]}]." for index in range(0, len(parts) - 1, 2))
    return f"{scopes}{recorded.name}"
