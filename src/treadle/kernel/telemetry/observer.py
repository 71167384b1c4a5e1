"""Observers: measures, made only while someone observes, and the object through which an engine emits everything.

Events (`kernel.telemetry.events`) are few and for people; measures are many and for machines. Code checks `observe` before it
makes a measure. An observer cannot disturb the engine: its exceptions are logged once and go no further.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol, TypeVar

import msgspec

from treadle.kernel.telemetry.events import Emit, Event, log_event
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
    """A handler (or a function, until it parks) has ended."""

    task: Task
    move: str | None
    """The resulting move; None if the attempt was stopped."""
    took: float


class SettleAnswered(msgspec.Struct, frozen=True, gc=False):
    """The store has answered the settlement of an attempt."""

    task_id: str
    move: str
    done: bool
    took: float


class JobPolled(msgspec.Struct, frozen=True, gc=False):
    """A poll of an external job begins."""

    name: str
    late: float
    """Seconds since it was due."""


Measure = StoreCalled | TasksStored | TasksClaimed | AttemptEnded | SettleAnswered | JobPolled
Observer = Callable[[Event | Measure], None]


class Spans(Protocol):
    """The interface to traces; `wiring.tracing` implements it."""

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


class Telemetry:
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

    def __call__(self, event: Event) -> None:
        self._emit(event)
        if self.observe is not None:
            self.observe(event)

    def add(self, observer: Observer) -> None:
        """Add an observer. It is called in any thread and must be quick."""
        self._observers = [*self._observers, observer]
        self.observe = self._inform

    def remove(self, observer: Observer) -> None:
        """Remove an observer."""
        self._observers = [each for each in self._observers if each != observer]
        self.observe = self._inform if self._observers else None

    def trace_id(self) -> str | None:
        """The trace of the running code, if any."""
        return None if self.spans is None else self.spans.trace_id()

    def continuing(self, headers: Mapping[str, str]) -> AbstractContextManager[object]:
        """Like `Spans.continuing`, if traces are enabled."""
        return nullcontext() if self.spans is None else self.spans.continuing(headers)

    def _inform(self, event: Event | Measure) -> None:
        for observer in self._observers:
            try:
                observer(event)
            except BaseException:
                self.remove(observer)
                _log.exception("an observer failed; it is removed")


def telemetry_of(emit: Emit) -> Telemetry:
    """The telemetry behind an `emit`, or an unobserved one."""
    return emit if isinstance(emit, Telemetry) else Telemetry(emit)


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
