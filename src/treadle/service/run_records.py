"""Public records of runs and steps, made from stored ones."""

from __future__ import annotations

from typing import Any, TypeVar

from treadle.api.runs import Activity, Run, RunLogLine, UsageRequest, UsageSums
from treadle.api.steps import Step, StepFailure
from treadle.api.wire import record_of
from treadle.kernel.runs import display as kernel
from treadle.kernel.runs.display import ShownStep
from treadle.kernel.runs.flows import declared_returns
from treadle.kernel.runs.step_reads import folds
from treadle.lang.program import Program
from treadle.model import runs as model
from treadle.model.tasks import LogLine
from treadle.model.usage import Usage, total
from treadle.model.values import BlobRef, Json, decode

R = TypeVar("R", bound=Run)
S = TypeVar("S", bound=Step)


def run_record(kind: type[R], run: model.Run, activity: kernel.Activity | None, took_for: int | None, **more: Any) -> R:
    """A record with the fields of a run, without its values, what it is doing or how long it took, and `more`."""
    shown = None if activity is None else record_of(Activity, activity)
    return record_of(kind, run, error=decode(run.error), activity=shown, took_for=took_for, **more)


def usage_sums(rows: list[Usage]) -> UsageSums:
    """Sums over model requests."""
    return record_of(UsageSums, total(rows))


def usage_request(row: Usage, path: str | None) -> UsageRequest:
    """One model request."""
    return record_of(UsageRequest, row, path=path)


def run_line(number: int, line: LogLine, paths: dict[str, str]) -> RunLogLine:
    """A log line of a run."""
    return record_of(RunLogLine, line, details=line.said or None, number=number, path=paths.get(line.step_id or ""))


def step_record(
    kind: type[S], shown: ShownStep, program: Program | None, params: dict[str, Json], returns: dict[str, Json], **more: Any
) -> S:
    """A record with the fields of a step or block, and `more`; `program` is that of its run, None for a function."""
    row, error = shown.row, shown.row.error
    facet = None if program is None or row.facet is None or row.is_terminal else program.find_facet(row.facet)
    return record_of(
        kind,
        shown,
        row,
        state=str(shown.state),
        language_state=str(row.state),
        folds=folds(row, program),
        params=by_size(params),
        returns=by_size(returns),
        error=None if error is None else StepFailure(error.type, error.text, error.step_id, error.message),
        expects=None if facet is None or not facet.is_event else declared_returns(facet),
        **more,
    )


def by_size(values: dict[str, Json]) -> dict[str, Json]:
    """Values, with large ones replaced by `{"@size": characters}`."""
    return {name: {"@size": value.size} if isinstance(value, BlobRef) else value for name, value in values.items()}
