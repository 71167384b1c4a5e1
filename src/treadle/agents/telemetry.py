"""`Telemetry`: the latest events of an evaluator, for tests and debugging; see `treadle events` for those of the store."""

from __future__ import annotations

from collections import deque
from typing import Any


class Telemetry:
    """Keeps up to `max_events` events, oldest first; a subclass may override `emit`. It never affects execution.

    An event has `timestamp` (ms), `eventType` (such as `workflow.start`), `workflowId`, `stepId` and `details`.
    """

    def __init__(self, enabled: bool = True, max_events: int = 10_000) -> None:
        self.enabled = enabled
        self.events: deque[dict[str, Any]] = deque(maxlen=max_events)

    def emit(self, event: dict[str, Any]) -> None:
        """Keep the event, unless disabled."""
        if self.enabled:
            self.events.append(event)
