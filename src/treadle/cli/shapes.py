"""Records as JSON: one shape each, the same names as in Python and SQL, instants as RFC 3339, durations in milliseconds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from treadle.model.clock import as_text
from treadle.model.runs import FlowVersion, Run
from treadle.model.states import Hold
from treadle.model.tasks import LogLine, Move, Task
from treadle.model.values import Json, decode

if TYPE_CHECKING:
    from treadle.kernel.run_reads import ShownStep

_HOLDS = {
    Hold.OVER_LIMIT: "over_limit",
    Hold.LIST_PAUSED: "list_paused",
    Hold.RUN_PAUSED: "run_paused",
    Hold.TASK_PAUSED: "task_paused",
}


def task_json(task: Task) -> dict[str, Json]:
    """The task without its payload and result, which may be large."""
    return {
        "id": task.id,
        "name": task.name,
        "state": task.shown_state,
        "namespace": task.namespace,
        "kind": task.kind,
        "task_list": task.task_list,
        "priority": task.priority,
        "attempt": task.attempt,
        "failures": task.failures,
        "takeovers": task.takeovers,
        "claim_version": task.claim_version,
        "version": task.version,
        "owner_id": task.owner_id,
        "created_at": as_text(task.created_at),
        "due_at": as_text(task.due_at),
        "wake_at": as_text(task.wake_at),
        "claimed_at": as_text(task.claimed_at),
        "heartbeat_at": as_text(task.heartbeat_at),
        "progress_at": as_text(task.progress_at),
        "deadline_at": as_text(task.deadline_at),
        "finished_at": as_text(task.finished_at),
        "timeout_for": task.timeout_for,
        "progress_for": task.progress_for,
        "holds": [word for bit, word in _HOLDS.items() if task.hold & bit],
        "unique_key": task.unique_key,
        "limit_key": task.limit_key,
        "run_id": task.run_id,
        "step_id": task.step_id,
        "root_id": task.root_id or None,
        "trace_id": task.trace_id,
        "policy": decode(task.policy),
        "progress": decode(task.progress),
        "error": decode(task.error),
        "error_code": task.error_code,
        "actor": task.actor,
    }


def move_json(move: Move) -> dict[str, Json]:
    """A row of the log."""
    return {
        "version": move.version,
        "at": as_text(move.at),
        "move": move.move,
        "from_state": move.from_state,
        "to_state": move.to_state,
        "actor": move.actor,
        "claim_version": move.claim_version,
        "data": decode(move.data),
    }


def line_json(line: LogLine) -> dict[str, Json]:
    """A line about a task."""
    said = line.said or None
    return {"at": as_text(line.at), "level": line.level, "source": line.source, "message": line.message, "details": said}


def run_json(run: Run) -> dict[str, Json]:
    """The run without its inputs and outputs, which may be large."""
    return {
        "id": run.id,
        "workflow": run.workflow,
        "state": run.state,
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
        "created_at": as_text(run.created_at),
        "finished_at": as_text(run.finished_at),
    }


def step_json(shown: ShownStep) -> dict[str, Json]:
    """A step or block of a run; a value that is stored apart is shown by its size."""
    row = shown.row
    return {
        "id": row.id,
        "path": row.path,
        "place": row.place,
        "kind": str(row.kind),
        "facet": row.facet,
        "state": str(row.status),
        "language_state": str(row.state),
        "task_id": row.task_id,
        "params": values_json(row.params),
        "returns": values_json(row.returns),
        "error": None if row.error is None else {"type": row.error.type, "message": row.error.text, "step_id": row.error.step_id},
        "created_at": as_text(shown.created_at),
        "updated_at": as_text(shown.updated_at),
    }


def values_json(values: dict[str, Json]) -> dict[str, Json]:
    """Attributes with what is stored apart as `{"@size": characters}`."""
    from treadle.evaluator.records import BlobRef

    return {name: {"@size": value.size} if isinstance(value, BlobRef) else value for name, value in values.items()}


def flow_version_json(version: FlowVersion) -> dict[str, Json]:
    """A version of a published flow."""
    return {
        "name": version.name,
        "version": version.version,
        "flow_id": version.flow_id,
        "actor": version.actor,
        "published_at": as_text(version.published_at),
    }
