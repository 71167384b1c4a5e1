"""Observers: measures, made only while someone observes, and the object through which an engine emits everything.

`CallTimer` is an observer that keeps a few numbers about store calls.

Events (`kernel.telemetry.events`) are few and for people; measures are many and for machines. Code checks `observe` before it
makes a measure. An observer cannot disturb the engine: its exceptions are logged once and go no further.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

import msgspec

from treadle.kernel.telemetry.events import Emit, TelemetryEvent, log_event
from treadle.model.clock import Clock
from treadle.model.errors import StoreError
from treadle.model.tasks import NewTask, Task
from treadle.model.text import safe_logger

_log = safe_logger("treadle")
T = TypeVar("T")


class StoreCalled(msgspec.Struct, frozen=True, gc=False):
    """A store call: `claim`, `commit`, `renew` or `wake`."""

    operation: str
    took: float
    """Seconds."""
    count: int
    """Size of the result: tasks claimed, units committed, leases renewed, tasks woken."""
    failed: bool = False


class TasksStored(msgspec.Struct, frozen=True, gc=False):
    """New tasks are durable."""

    tasks: Sequence[NewTask]
    took: float
    """Seconds since the request."""
    origin: object
    """The result of `Spans.origin` at the time of the request."""


class TasksClaimed(msgspec.Struct, frozen=True, gc=False):
    """A worker has claimed these tasks."""

    tasks: Sequence[Task]


class AttemptEnded(msgspec.Struct, frozen=True, gc=False):
    """A handler (or a function, until it is suspended) has ended."""

    task: Task
    transition: str | None
    """The resulting transition; None if the attempt was stopped."""
    took: float


class SettleAnswered(msgspec.Struct, frozen=True, gc=False):
    """The store has answered the settlement of an attempt."""

    task_id: str
    transition: str
    done: bool
    took: float


class JobPolled(msgspec.Struct, frozen=True, gc=False):
    """A poll of an external job begins."""

    name: str
    late: float
    """Seconds since it was due."""


Measure = StoreCalled | TasksStored | TasksClaimed | AttemptEnded | SettleAnswered | JobPolled
Observer = Callable[[TelemetryEvent | Measure], None]


class Spans(Protocol):
    """The interface to traces; `engine.tracing` implements it."""

    def trace_id(self) -> str | None:
        """The trace of the running code, for new tasks and runs without a given one."""

    def origin(self) -> object:
        """The position of the running code in its trace, handed back in `TasksStored`."""

    def continuing(self, headers: Mapping[str, str]) -> AbstractContextManager[object]:
        """Run the enclosed code in the trace of a request's headers (W3C `traceparent`), if any."""

    def flush(self) -> bool:
        """Send pending spans within a time limit; blocks."""

    def executing(self, task: Task) -> AbstractContextManager[Callable[[], None]]:
        """Run the enclosed code in the span of this attempt, which lasts until the yielded function is called, possibly later."""


class EventEmitter:
    """The `emit` of an engine: passes every event on and informs observers; by default there are none."""

    __slots__ = ("_emit", "_observers", "observe", "spans")

    def __init__(self, emit: Emit = log_event) -> None:
        self._emit = emit
        self._observers: list[Observer] = []
        self.observe: Observer | None = None
        """Receives measures; None while nobody observes, and then none are made."""
        self.spans: Spans | None = None

    @property
    def hears_all(self) -> bool:
        """Whether a subscriber wants every successful task: there are too many to emit needlessly."""
        return self.observe is not None or self._emit is not log_event or _log.isEnabledFor(logging.DEBUG)

    def __call__(self, event: TelemetryEvent) -> None:
        self._emit(event)
        if self.observe is not None:
            self.observe(event)

    def add(self, observer: Observer) -> None:
        """Add an observer. It is called in any thread and must be quick."""
        self._observers = [*self._observers, observer]
        self.observe = self._inform

    def remove(self, observer: Observer) -> None:
        """Remove an observer."""
        self._observers = [other for other in self._observers if other != observer]
        self.observe = self._inform if self._observers else None

    def trace_id(self) -> str | None:
        """The trace of the running code, if any."""
        return None if self.spans is None else self.spans.trace_id()

    def continuing(self, headers: Mapping[str, str]) -> AbstractContextManager[object]:
        """Like `Spans.continuing`, if traces are enabled."""
        return nullcontext() if self.spans is None else self.spans.continuing(headers)

    def _inform(self, event: TelemetryEvent | Measure) -> None:
        for observer in self._observers:
            try:
                observer(event)
            except BaseException:
                self.remove(observer)
                _log.exception("an observer failed; it is removed")


def telemetry_of(emit: Emit) -> EventEmitter:
    """The telemetry behind an `emit`, or an unobserved one."""
    return emit if isinstance(emit, EventEmitter) else EventEmitter(emit)


async def timed(observe: Observer, clock: Clock, operation: str, call: Awaitable[T], size: Callable[[T], int]) -> T:
    """Await a store call and measure it."""
    sent_at = clock.monotonic()
    try:
        answer = await call
    except StoreError:
        observe(StoreCalled(operation, clock.monotonic() - sent_at, 0, failed=True))
        raise
    observe(StoreCalled(operation, clock.monotonic() - sent_at, size(answer)))
    return answer


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

    def observe(self, event: TelemetryEvent | Measure) -> None:
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
            return sorted(self._times.values(), key=lambda times: times.longest, reverse=True)
