"""Runs and steps as the contract shows them."""

from __future__ import annotations

from typing import Any

from treadle.api import runs as shapes
from treadle.api import steps as step_shapes
from treadle.kernel.functions.reads import FunctionStepRow
from treadle.kernel.runs.reads import ShownStep
from treadle.kernel.runs.step_reads import folds
from treadle.lang.program import Program
from treadle.model.runs import Run
from treadle.model.tasks import LogLine
from treadle.model.usage import Usage, total
from treadle.model.values import BlobRef, Json, decode
from treadle.service.shaping import instant


def run_fields(run: Run) -> dict[str, Any]:
    """The fields that all shapes of a run share."""
    return {
        "id": run.id,
        "workflow": run.workflow,
        "kind": run.kind,
        "state": str(run.state),
        "namespace": run.namespace,
        "flow_id": run.flow_id,
        "task_list": run.task_list,
        "priority": run.priority,
        "version": run.version,
        "steps": run.steps,
        "error": decode(run.error),
        "failed_step_id": run.failed_step_id,
        "idempotency_key": run.idempotency_key,
        "parent_id": run.parent_id,
        "root_id": run.root_id,
        "trace_id": run.trace_id,
        "created_at": instant(run.created_at),
        "finished_at": instant(run.finished_at),
    }


def shaped_run(run: Run) -> shapes.Run:
    """The run without its values."""
    return shapes.Run(**run_fields(run))


def shaped_sums(rows: list[Usage]) -> shapes.UsageSums:
    """Sums over requests."""
    sums = total(rows)
    return shapes.UsageSums(
        requests=sums.requests,
        input_tokens=sums.input_tokens,
        output_tokens=sums.output_tokens,
        cache_write_tokens=sums.cache_write_tokens,
        cache_read_tokens=sums.cache_read_tokens,
        cost_micros=sums.cost_micros,
        unsettled=sums.unsettled,
    )


def shaped_request(row: Usage, path: str | None) -> shapes.UsageRequest:
    """One request to a model."""
    return shapes.UsageRequest(
        id=row.id,
        run_id=row.run_id,
        step_id=row.step_id,
        task_id=row.task_id,
        attempt=row.attempt,
        request_no=row.request_no,
        model=row.model,
        state=row.state,
        reserved_micros=row.reserved_micros,
        cost_micros=row.cost_micros,
        input_tokens=row.input_tokens,
        output_tokens=row.output_tokens,
        cache_write_tokens=row.cache_write_tokens,
        cache_read_tokens=row.cache_read_tokens,
        interrupted=row.interrupted,
        at=instant(row.at),
        path=path,
    )


def shaped_run_line(number: int, line: LogLine, paths: dict[str, str]) -> shapes.RunLine:
    """A line about a run."""
    return shapes.RunLine(
        at=instant(line.at),
        level=line.level,
        source=line.source,
        message=line.message,
        details=line.said or None,
        number=number,
        task_id=line.task_id,
        step_id=line.step_id,
        path=paths.get(line.step_id or ""),
    )


def shaped_step(shown: ShownStep, program: Program | None, *, values: bool = True) -> step_shapes.Step:
    """A step or block; `program` is that of its run, None for a function."""
    row = shown.row
    return step_shapes.Step(**step_fields(shown, program, row.params if values else {}, row.returns if values else {}))


def step_fields(shown: ShownStep, program: Program | None, params: dict[str, Json], returns: dict[str, Json]) -> dict[str, Any]:
    """The fields that all shapes of a step share."""
    row = shown.row
    error = row.error
    return {
        "id": row.id,
        "path": row.path,
        "place": row.place,
        "statement_id": row.statement_id,
        "name": row.name,
        "kind": str(row.kind),
        "is_step": row.is_step,
        "facet": row.facet,
        "state": str(row.status),
        "language_state": str(row.state),
        "folds": folds(row, program),
        "parent_id": row.parent_id,
        "ordinal": row.ordinal,
        "depth": row.depth,
        "task_id": row.task_id,
        "params": by_size(params),
        "returns": by_size(returns),
        "error": None if error is None else step_shapes.StepFailure(error.type, error.text, error.step_id, error.message),
        "open": row.open,
        "failed": row.failed,
        "total": row.total,
        "took_for": _took_for(shown),
        "created_at": instant(shown.created_at),
        "updated_at": instant(shown.updated_at),
    }


def by_size(values: dict[str, Json]) -> dict[str, Json]:
    """Attributes with what is stored apart as `{"@size": characters}`."""
    return {name: {"@size": value.size} if isinstance(value, BlobRef) else value for name, value in values.items()}


def _took_for(shown: ShownStep) -> int | None:
    """How long it took; of a function's step that is stored only when it has ended, nobody knows that."""
    known = shown.updated_at > shown.created_at or not isinstance(shown.row, FunctionStepRow)
    return shown.updated_at - shown.created_at if shown.row.is_terminal and known else None
