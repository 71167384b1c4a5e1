"""Our ids as those of a W3C trace context; pure, so that every process comes to the same without a word being stored.

The trace of a task is its `trace_id` (a UUID or 32 hex digits are taken as they are, other text by its hash), else the tree that it
belongs to. The span that stored a task has an id that is made from the task's: the parent of every attempt.
"""

from __future__ import annotations

import hashlib
from uuid import UUID

from treadle.model.tasks import NewTask, Task


def trace_number(trace_id: str) -> int:
    """The 128 bits that stand for a trace id of ours; never 0, which no trace may have."""
    try:
        number = UUID(trace_id).int
    except ValueError:
        number = 0
    return number or int.from_bytes(hashlib.sha256(trace_id.encode("utf-8", "surrogatepass")).digest()[:16]) or 1


def span_number(task_id: str) -> int:
    """The 64 bits of the span that stored the task; never 0."""
    return int.from_bytes(hashlib.sha256(task_id.encode()).digest()[:8]) or 1


def trace_of(task: Task | NewTask) -> int:
    """The 128 bits of the trace that the task is in."""
    return trace_number(task.trace_id or task.root_id or task.id)


def traceparent(task: Task | NewTask) -> str:
    """The header `traceparent` with which a worker outside goes on with the trace of a task."""
    return f"00-{trace_of(task):032x}-{span_number(task.id):016x}-01"
