"""Bounded answers: short forms of records, limited pages, and large values shown by their size and beginning."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import make_dataclass
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_type_hints

from treadle.api.approvals import Approval
from treadle.api.contract import Doc
from treadle.api.dead_letters import DeadLetterGroup
from treadle.api.external_jobs import ExternalJob, ExternalJobDetail
from treadle.api.objectives import Objective, ObjectiveDetail
from treadle.api.runs import Run, RunDetail
from treadle.api.schedules import Schedule
from treadle.api.tasks import Task, TaskDetail
from treadle.api.view import Column, view_of
from treadle.api.watchers import Watcher
from treadle.api.wire import to_builtins
from treadle.model.errors import InvalidInput
from treadle.model.values import Json

VALUE = 4_000
"""Characters of JSON up to which a value is shown in full."""
_START = 400
_ROWS = 20
"""Rows of a record in its short form, such as its last history entries."""

PAGE, PAGE_LIMIT = 20, 100

Limit = Annotated[int, Doc(f"Page size, up to {PAGE_LIMIT}", PAGE)]
Before = Annotated[str | None, Doc("`next_before` of the previous page")]
After = Annotated[str | None, Doc("`next_after` of the previous page")]
Whole = Annotated[bool, Doc("Include large values, which are otherwise shown by their size and beginning")]


Shape = Mapping[str, Any]
"""The fields of an answer with their types."""
Fields = dict[str, Json]
"""An answer: values by the fields of its shape."""


class Brief:
    """The short form of a record: its fields are the columns of a view."""

    def __init__(self, *columns: str | Column, types: Shape | None = None) -> None:
        self.columns = [Column(column) if isinstance(column, str) else column for column in columns]
        self._types = types or {}
        """Types of fields that differ from those of the record."""

    def of(self, record: Any, whole: bool = False) -> Fields:
        """The short form of the record; `whole` includes large values."""
        return {column.name: _value(column, record, whole) for column in self.columns}

    def shape(self, record: type) -> Shape:
        """Its fields with their types, for records of this type."""
        return {column.name: self._types.get(column.name) or _type(column, record) for column in self.columns}

    def type(self, record: type) -> type:
        """Its type for records of this type, for schemas."""
        return record_type(record.__name__, self.shape(record))


def brief_of(record: type, **types: Any) -> Brief:
    """The short form that the view of the records declares."""
    view = view_of(record)
    assert view is not None
    return Brief(*view.brief, types=types)


def _value(column: Column, record: Any, whole: bool) -> Any:
    value = column.value(record)
    if column.rows is not None:
        return [Brief(*column.rows.brief).of(row) for row in value[-(column.limit or _ROWS) :]]
    match column.shown_as:
        case "error":
            return error_line(value)
        case "json":
            return shown(to_builtins(value), whole)
    return line(value) if column.of and isinstance(value, str) else to_builtins(value)


def _type(column: Column, record: type) -> Any:
    """The type of a column's values, from the record or from the function that computes them."""
    if column.rows is not None:
        return list[Brief(*column.rows.brief).type(column.rows.record)]  # type: ignore[misc]
    match column.shown_as:
        case "error":
            return str | None
        case "json":
            return Any
    if callable(column.of):
        return get_type_hints(column.of)["return"]
    hint: Any = record
    is_optional = False
    for name in (column.of or column.name).split("."):
        members = [member for member in get_args(hint) if member is not NoneType] if NoneType in get_args(hint) else [hint]
        is_optional |= members[0] is not hint
        hint = get_type_hints(members[0]).get(name, str)  # a property is a text
    return hint | None if is_optional else hint


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
        return {name: field if _size(field) <= share else _cut(field) for name, field in value.items()}
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


def _message(log: Any) -> str:
    """The message of a log line with its details."""
    return str(log.message) if log.details in (None, {}, []) else f"{log.message} {text_of(shown(log.details, most=400))}"


def _path(log: Any) -> str | None:
    return getattr(log, "path", None)


def _success(record: Any) -> bool:
    return True


def _no_error(record: Any) -> str | None:
    return None


_RUN_ID = Column("run_id", "id")
LOG_LINE = Brief("at", "level", Column("message", _message), Column("path", _path))
TASK, TASK_VIEW = brief_of(Task), brief_of(TaskDetail)
RUN, RUN_VIEW = brief_of(Run), brief_of(RunDetail)
RUNNER = Brief(Column("success", _success), Column("error", _no_error, "text"), _RUN_ID, "state")
"""The answer to an action on a run, in the terms of agents."""
NEW_RUN = Brief(_RUN_ID, "workflow", "state", "missing_handlers")
ADOPTED_RUN = Brief(_RUN_ID, "workflow", "state", "servers")
STEP = Brief(
    *("id", "path", "facet", "about", "state", "began_at", "ended_at"),
    Column("error", "error.message", "text"),
    Column("params", kind="json"),
    Column("returns", kind="json"),
    "task_id",
)
APPROVAL = brief_of(Approval)
CAUSE = brief_of(DeadLetterGroup)
JOB, JOB_VIEW = brief_of(ExternalJob), brief_of(ExternalJobDetail)
SCHEDULE = brief_of(Schedule, state=Literal["active", "paused", "finished", "removed", "unreadable"])
WATCHER = brief_of(Watcher, state=Literal["active", "paused", "removed", "unreadable"])
OBJECTIVE, OBJECTIVE_VIEW = brief_of(Objective), brief_of(ObjectiveDetail)
