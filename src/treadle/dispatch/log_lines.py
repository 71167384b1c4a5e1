"""Dispatch's own log lines about jobs: the end of each execution."""

from __future__ import annotations

from treadle.dispatch.records import WORKER_ID
from treadle.model.tasks import FRAMEWORK, SOURCE, LogLine
from treadle.model.values import encode

_LONGEST = 4096


def done_line(task_id: str, at: int, attempt: int, worker_id: str | None) -> LogLine:
    """Return the line of a completed execution."""
    return _line(task_id, at, "info", "Task completed successfully", attempt, worker_id)


def error_line(task_id: str, at: int, message: str, attempt: int, worker_id: str | None) -> LogLine:
    """Return the line of a failed execution."""
    return _line(task_id, at, "error", message[:_LONGEST], attempt, worker_id)


def _line(task_id: str, at: int, level: str, message: str, attempt: int, worker_id: str | None) -> LogLine:
    return LogLine(
        task_id=task_id,
        at=at,
        level=level,
        message=message.replace("\x00", "\\0").encode("utf-8", "replace").decode(),
        details=encode({SOURCE: FRAMEWORK, "attempt": attempt, WORKER_ID: worker_id}),
    )
