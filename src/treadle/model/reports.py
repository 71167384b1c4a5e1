"""Checked reports of a running task: log lines and progress. Pure."""

from __future__ import annotations

from treadle.model.errors import InvalidInput
from treadle.model.tasks import LogLine, Task
from treadle.model.user_values import number_of, shown, storable, text_of
from treadle.model.values import Json, encode

LEVELS = ("debug", "info", "success", "warning", "error")
_LONGEST_MESSAGE = 4096


def log_line(task: Task, at: int, message: str, level: str = "info", details: dict[str, Json] | None = None) -> LogLine:
    """Return a log line about the task; a message that is too long is truncated."""
    if not isinstance(level, str) or level not in LEVELS:
        raise InvalidInput(f"level must be one of {', '.join(LEVELS)}, not {shown(level)}.")
    return LogLine(
        task_id=task.id,
        at=at,
        level=storable(level),
        message=text_of(message, _LONGEST_MESSAGE),
        details=encode(details, "details") if details else None,
        run_id=task.run_id,
        step_id=task.step_id,
    )


def progress_text(fraction: float | None, message: str | None) -> str:
    """Return progress as JSON. A fraction slightly out of range is clamped: reporting progress must not fail the work."""
    if fraction is not None:
        number = number_of(fraction)
        if number is None or not -0.01 <= number <= 1.01:
            raise InvalidInput(f"progress must be a fraction from 0 to 1, not {shown(fraction)}.")
        fraction = min(max(number, 0.0), 1.0)
    if message is not None and not isinstance(message, str):
        raise InvalidInput(f"the message of progress must be text, not {type(message).__name__}.")
    parts = {"fraction": fraction, "message": None if message is None else storable(message, _LONGEST_MESSAGE)}
    return encode({name: value for name, value in parts.items() if value is not None}, "progress")
