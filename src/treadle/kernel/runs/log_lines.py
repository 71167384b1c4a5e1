"""Log lines of flows. Pure."""

from __future__ import annotations

from treadle.evaluator import BlobRef, Changes
from treadle.kernel.runs.rows import VALUE_LIMIT
from treadle.model.tasks import LogLine
from treadle.model.values import Json, encode

_LONGEST_MESSAGE = 4096


def flow_lines(run_id: str, changes: Changes, at: int) -> list[LogLine]:
    """One line per `sys.log` of the changes."""
    return [
        LogLine(
            task_id=entry.step_id,
            at=at,
            level="info",
            message=f"{entry.path}: {_shown(entry.values)}"[:_LONGEST_MESSAGE],
            run_id=run_id,
            step_id=entry.step_id,
        )
        for entry in changes.logs
    ]


def _shown(values: dict[str, Json]) -> str:
    """The logged values as JSON; a separately stored value is shown by its size."""
    plain = {name: f"<{value.size} characters>" if isinstance(value, BlobRef) else value for name, value in values.items()}
    return encode(plain, "log", VALUE_LIMIT)
