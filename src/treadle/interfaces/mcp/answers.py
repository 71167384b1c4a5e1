"""Bounded answers: short forms of records, limited pages, and large values shown by their size and beginning."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, make_dataclass
from typing import Annotated, Any, Literal, get_type_hints

from treadle.api.contract import Doc
from treadle.api.tasks import MoveRecord
from treadle.api.wire import to_builtins
from treadle.model.errors import InvalidInput
from treadle.model.values import Json

VALUE = 4_000
"""Characters of JSON up to which a value is shown in full."""
_START = 400
_LINES = 20
_TRIES = 5

PAGE, PAGE_LIMIT = 20, 100

Limit = Annotated[int, Doc(f"Page size, up to {PAGE_LIMIT}", PAGE)]
Before = Annotated[str | None, Doc("`next_before` of the previous page")]
After = Annotated[str | None, Doc("`next_after` of the previous page")]
Whole = Annotated[bool, Doc("Include large values, which are otherwise shown by their size and beginning")]


Shape = Mapping[str, Any]
"""The fields of an answer with their types."""
Fields = dict[str, Json]
"""An answer: values by the fields of its shape."""


@dataclass(frozen=True)
class Brief:
    """The short form of a record."""

    fields: str
    """Names of its fields, in order."""
    computed: Mapping[str, Callable[[Any], Any]] = field(default_factory=dict)
    """Functions of the record, by the names of fields that are not fields of the record as they are."""
    values: str = ""
    """Names of the fields with values of users, which are cut if they are large."""
    types: Mapping[str, Any] = field(default_factory=dict)
    """Types of fields, where neither the record nor the function says it."""

    def of(self, record: Any, whole: bool = False) -> Fields:
        """The short form of the record; `whole` includes large values."""
        answer = {
            name: to_builtins(self.computed[name](record) if name in self.computed else getattr(record, name))
            for name in self.fields.split()
        }
        return answer | {name: shown(answer[name], whole) for name in self.values.split()}

    def shape(self, record: type) -> Shape:
        """Its shape for records of this type."""
        computed = {name: get_type_hints(compute)["return"] for name, compute in self.computed.items()}
        hints = {**get_type_hints(record), **computed, **dict.fromkeys(self.values.split(), Any), **self.types}
        return {name: hints[name] for name in self.fields.split()}

    def with_fields(
        self, fields: str, computed: Mapping[str, Callable[[Any], Any]], values: str = "", types: Mapping[str, Any] | None = None
    ) -> Brief:
        """The same with more fields."""
        return Brief(f"{self.fields} {fields}", {**self.computed, **computed}, f"{self.values} {values}", types or {})

    def type(self, record: type) -> type:
        """Its type for records of this type, for schemas."""
        return record_type(record.__name__, self.shape(record))


def record_type(name: str, shape: Shape) -> type:
    """The type of an answer with these fields, for its schema."""
    return make_dataclass(name, list(shape.items()), namespace={"__pydantic_config__": {"extra": "forbid"}})


def page_size(limit: int) -> int:
    """The limit, if it is allowed."""
    if not 0 < limit <= PAGE_LIMIT:
        raise InvalidInput(f"limit must be from 1 to {PAGE_LIMIT}, not {limit}.")
    return limit


def shown(value: Json, whole: bool = False, most: int = VALUE) -> Json:
    """The value, or its size and beginning if it is large; in an object, only large values are replaced."""
    if whole or (size := _size(value)) <= most:
        return value
    if isinstance(value, dict) and len(value) <= 50:
        share = max(most // len(value), _START)
        return {name: each if _size(each) <= share else _cut(each) for name, each in value.items()}
    return _cut(value, size)


def _cut(value: Json, size: int | None = None) -> dict[str, Json]:
    text = value if isinstance(value, str) else text_of(value)
    return {"@size": size or len(text), "@start": text[:_START]}


def _size(value: Any) -> int:
    return len(value) if isinstance(value, str) else len(text_of(value))


def text_of(value: Json) -> str:
    """Compact JSON, without escaped letters."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def line(text: str | None, most: int = 300) -> str | None:
    """The text as one line."""
    if text is None:
        return None
    flat = " ".join(text.split())
    return flat if len(flat) <= most else f"{flat[: most - 1]}…"


def error_line(error: Json) -> str | None:
    """The message of an error, in one line."""
    if error is None:
        return None
    return line(str(error.get("message", error)) if isinstance(error, dict) else str(error))


def last(items: Sequence[Any], most: int) -> list[Any]:
    """The last `most` items."""
    return list(items[-most:])


def _error(record: Any) -> str | None:
    return error_line(record.error)


def _why(record: Any) -> str:
    return line(record.why.text) or ""


def _run_id(run: Any) -> str:
    return str(run.id)


def _standing(approval: Any) -> str:
    return str(approval.standing)


def _success(record: Any) -> bool:
    return True


def _no_error(record: Any) -> str | None:
    return None


def _target(trigger: Any) -> str:
    return f"{trigger.target.kind} {trigger.target.name}"


def _source(watcher: Any) -> str:
    return f"{watcher.source.kind} {watcher.source.place}"


def _activity(run: Any) -> str | None:
    return None if run.activity is None else line(run.activity.text)


def _doing(run: Any) -> str | None:
    return None if run.activity is None else str(run.activity.doing)


def _step_error(step: Any) -> str | None:
    return None if step.error is None else line(step.error.message)


def _message(log: Any) -> str:
    """The message of a log line with its details."""
    return str(log.message) if log.details in (None, {}, []) else f"{log.message} {text_of(shown(log.details, most=400))}"


def _path(log: Any) -> str | None:
    return getattr(log, "path", None)


def _moves(task: Any) -> list[Fields]:
    return [MOVE.of(move) for move in last(task.moves, _LINES)]


def _lines(task: Any) -> list[str]:
    return [line(f"{log.level}: {log.message}") or "" for log in last(task.lines, _LINES)]


def _progress(task: Any) -> Any:
    return shown(task.progress)


def _blocked_by(objective: Any) -> list[str]:
    return [blocker.objective_id or blocker.text or "" for blocker in objective.open_blockers]


_TRY = record_type(
    "Try",
    {
        "work_order_id": str,
        "handler": str,
        "status": str,
        "gate_result": str | None,
        "reason": str | None,
        "content": Json,
        "next_actions": list[str],
    },
)


def _tries(objective: Any) -> list[Fields]:
    """The last workorders: attempts at the objective and their results."""
    return [_try(trail) for trail in last(objective.workorder_trails, _TRIES)]


def _try(trail: Any) -> Fields:
    record = trail.run_record
    return {
        "work_order_id": trail.workorder.work_order_id,
        "handler": trail.workorder.diazotroph_type,
        "status": trail.workorder.status,
        "gate_result": None if record is None else record.gate_result,
        "reason": None if record is None else record.reason,
        "content": None if trail.output_bundle is None else shown(trail.output_bundle.content),
        "next_actions": [] if trail.pause_state is None else [action.action for action in trail.pause_state.actions],
    }


def _job_name(job: Any) -> str:
    return str(job.declared_render_type_ref)


def _job_task(job: Any) -> str:
    return str(job.render_job_id)


def _job_hint(job: Any) -> str | None:
    return line(job.progress_hint)


def _job_error(job: Any) -> str | None:
    return line(job.failure_detail or job.last_error)


def _job_events(job: Any) -> list[str]:
    """The dispatch, the last polls and the end, one line each."""
    return [f"{event.at.isoformat()} {event.kind}" for event in job.events]


LOG_LINE = Brief("at level message path", {"message": _message, "path": _path})
MOVE = Brief("at move to_state actor")
TASK = Brief("id name state task_list attempt created_at finished_at run_id error_code error", {"error": _error})
TASK_VIEW = TASK.with_fields(
    "why payload result progress owner_id wake_at step_id moves lines",
    {"why": _why, "progress": _progress, "moves": _moves, "lines": _lines},
    "payload result",
    {"moves": list[MOVE.type(MoveRecord)]},  # type: ignore[misc]
)
RUN = Brief(
    "id workflow state steps error doing activity created_at finished_at tags",
    {"error": _error, "doing": _doing, "activity": _activity},
)
RUN_VIEW = RUN.with_fields(
    "kind flow_id task_list inputs outputs failed_step_id why awaited_signals", {"why": _why}, "inputs outputs"
)
RUNNER = Brief("success error run_id state", {"success": _success, "error": _no_error, "run_id": _run_id})
"""The answer to an action on a run, in the terms of agents."""
NEW_RUN = Brief("run_id workflow state missing_handlers", {"run_id": _run_id})
ADOPTED_RUN = Brief("run_id workflow state servers", {"run_id": _run_id})
STEP = Brief("id path facet about state began_at ended_at error params returns task_id", {"error": _step_error}, "params returns")
APPROVAL = Brief(
    "id state title context deciders edits standing run_id task_id requested_by requested_at expires_at ended_by reason",
    {"standing": _standing},
    "context",
)
CAUSE = Brief("fingerprint error_code name count of_runs first_at last_at last_id error", {"error": _error})
JOB = Brief(
    "id state name task_id run_id external_job_id progress progress_hint dispatched_at due_at completed_at polls error",
    {"name": _job_name, "task_id": _job_task, "progress_hint": _job_hint, "error": _job_error},
)
JOB_VIEW = JOB.with_fields("why polling_interval_seconds raised_in_row events", {"why": _why, "events": _job_events})
SCHEDULE = Brief(
    "name state next_at target fired skipped error",
    {"target": _target, "error": _error},
    types={"state": Literal["active", "paused", "finished", "removed", "unreadable"]},
)
WATCHER = Brief(
    "name state source target items fired error error_at",
    {"source": _source, "target": _target, "error": _error},
    types={"state": Literal["active", "paused", "removed", "unreadable"]},
)
OBJECTIVE = Brief(
    "objective_id title status type importance urgency blocked_by created_by created_at updated_at", {"blocked_by": _blocked_by}
)
OBJECTIVE_VIEW = OBJECTIVE.with_fields(
    "why acceptance_criteria metadata tries",
    {"tries": _tries},
    "metadata",
    {"tries": list[_TRY]},  # type: ignore[valid-type]
)
