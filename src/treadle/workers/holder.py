"""The holder of the work in progress, for code that a handler or a durable function calls without its `ctx`."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Protocol

from treadle.model.tasks import Claim, Task


class Holder(Protocol):
    """An attempt, or a run in this process, whose claim changes each time that it continues."""

    task: Task
    token: Claim


holder: ContextVar[Holder | None] = ContextVar("treadle_holder", default=None)
"""The holder that this code runs for; copied into tasks and threads that it starts, None outside of held work."""
