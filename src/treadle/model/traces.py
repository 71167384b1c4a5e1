"""W3C trace context ids derived from Treadle's ids; pure, so that every process derives the same ones without storing any.

The trace of a task is its `trace_id` (a UUID or 32 hex digits are used directly, other text is hashed), else its tree's id.
The id of the span that stored a task is derived from the task's id; that span is the parent of every attempt.
"""

from __future__ import annotations

import hashlib
from uuid import UUID

from treadle.model.tasks import NewTask, Task


def trace_number(trace_id: str) -> int:
    """Return the 128 bits of a trace id; never 0, which the standard forbids."""
    try:
        number = UUID(trace_id).int
    except ValueError:
        number = 0
    return number or int.from_bytes(hashlib.sha256(trace_id.encode("utf-8", "surrogatepass")).digest()[:16]) or 1


def span_number(task_id: str) -> int:
    """Return the 64 bits of the span that stored the task; never 0."""
    return int.from_bytes(hashlib.sha256(task_id.encode()).digest()[:8]) or 1


def trace_of(task: Task | NewTask) -> int:
    """Return the 128 bits of the task's trace."""
    return trace_number(task.trace_id or task.root_id or task.id)


def traceparent(task: Task | NewTask) -> str:
    """Return the `traceparent` header with which a remote worker continues the task's trace."""
    return f"00-{trace_of(task):032x}-{span_number(task.id):016x}-01"
