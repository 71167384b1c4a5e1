"""Durations of this process's store calls by operation: an observer that keeps a few numbers."""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace

from treadle.kernel.telemetry.events import Event
from treadle.kernel.telemetry.observer import Measure, StoreCalled
from treadle.model.clock import Clock

SLOW = 0.1
"""Seconds from which a call counts as slow."""


@dataclass(frozen=True, slots=True)
class CallTimes:
    """Calls of one operation since the process began to measure; durations are seconds."""

    operation: str
    calls: int = 0
    failed: int = 0
    slow: int = 0
    """Calls that took `SLOW` or longer."""
    total: float = 0.0
    longest: float = 0.0
    longest_at: int | None = None


class CallTimer:
    """Counts the calls it observes; thread-safe."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._times: dict[str, CallTimes] = {}
        self.since_at = clock.now()

    def observe(self, event: Event | Measure) -> None:
        """Count a store call; other events are ignored."""
        if not isinstance(event, StoreCalled):
            return
        with self._lock:
            so_far = self._times.get(event.operation, CallTimes(event.operation))
            longest = event.took > so_far.longest
            self._times[event.operation] = replace(
                so_far,
                calls=so_far.calls + 1,
                failed=so_far.failed + event.failed,
                slow=so_far.slow + (event.took >= SLOW),
                total=so_far.total + event.took,
                longest=event.took if longest else so_far.longest,
                longest_at=self._clock.now() if longest else so_far.longest_at,
            )

    def list(self) -> list[CallTimes]:
        """The operations, longest call first."""
        with self._lock:
            return sorted(self._times.values(), key=lambda each: each.longest, reverse=True)
