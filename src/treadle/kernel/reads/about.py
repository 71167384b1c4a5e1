"""The subject of a task in one line: its payload, or the context of its question."""

from __future__ import annotations

from treadle.kernel.store.value_store import ValueStore
from treadle.model.errors import UnreadableValue
from treadle.model.names import APPROVAL, FUNCTION, HANDLER, SCRIPT
from treadle.model.tasks import Task
from treadle.model.values import arguments_text

_DESCRIBED = (HANDLER, FUNCTION, SCRIPT, APPROVAL)


def about_task(task: Task, value_store: ValueStore) -> str:
    """Return the payload of a task of user code in one line; empty if it cannot be read. Large values are not loaded."""
    if task.kind not in _DESCRIBED:
        return ""
    try:
        values = value_store.unfold(task.payload)
    except UnreadableValue:
        return ""
    context = values.get("context")
    return arguments_text(context if task.kind == APPROVAL and isinstance(context, dict) else values)
