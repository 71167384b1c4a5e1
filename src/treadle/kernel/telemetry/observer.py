"""Being observed: measures, which are made only while somebody observes, and the object through which an engine tells all.

Events (`kernel.telemetry.events`) are for people, and few; measures are for machines, and many. Code that could make one asks first
whether `observe` is there. No observer can disturb what it observes: what it raises is logged, once, and goes no further.
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

_log = logging.getLogger("treadle")
T = TypeVar("T")


class StoreCalled(msgspec.Struct, frozen=True, gc=False):
    """A call of the store: `claim`, `commit`, `renew` or `wake`."""

    operation: str
    took: float
    """Seconds."""
    count: int
    """What it was about: tasks taken, units committed, leases renewed, tasks woken."""
    failed: bool = False


class TasksStored(msgspec.Struct, frozen=True, gc=False):
    """New tasks are durable."""

    tasks: Sequence[NewTask]
    took: float
    """Seconds from asking for it."""
    origin: object
    """What `Spans.origin` said when it was asked for."""


class TasksClaimed(msgspec.Struct, frozen=True, gc=False):
    """A worker has taken these."""

    tasks: Sequence[Task]


class AttemptEnded(msgspec.Struct, frozen=True, gc=False):
    """A handler (or a function, until it parks) has come to an end."""

    task: Task
    move: str | None
    """What was made of it; None where it was stopped, and nothing was."""
    took: float


class SettleAnswered(msgspec.Struct, frozen=True, gc=False):
    """The store has said what became of the settle of an attempt."""

    task_id: str
    move: str
    done: bool
    took: float


class JobPolled(msgspec.Struct, frozen=True, gc=False):
    """A poll of an outside job begins."""

    name: str
    late: float
    """Seconds since it was due."""


Measure = StoreCalled | TasksStored | TasksClaimed | AttemptEnded | SettleAnswered | JobPolled
Observer = Callable[[Event | Measure], None]


class Spans(Protocol):
    """Traces, as the engine needs them; `wiring.tracing` has the one there is."""

    def trace_id(self) -> str | None:
        """The trace that the code that runs now is in, for new tasks and runs that were given none."""

    def origin(self) -> object:
        """Where the code that runs now is in its trace, to be handed back in `TasksStored`."""

    def continuing(self, headers: Mapping[str, str]) -> AbstractContextManager[object]:
        """What runs inside belongs to the trace that a request's headers tell of (W3C `traceparent`), if they do."""

    def flush(self) -> bool:
        """Send what is on its way, within a bound; blocks."""

    def executing(self, task: Task) -> AbstractContextManager[Callable[[], None]]:
        """What runs inside belongs to this attempt, which lasts until the yielded function is called: it may outlast the inside."""


class Telemetry:
    """The `emit` of an engine: passes every event on, and tells those who observe; by default that is nobody."""

    __slots__ = ("_emit", "_observers", "observe", "spans")

    def __init__(self, emit: Emit = log_event) -> None:
        self._emit = emit
        self._observers: list[Observer] = []
        self.observe: Observer | None = None
        """Where measures go; None while nobody observes, and then none is made."""
        self.spans: Spans | None = None

    @property
    def hears_all(self) -> bool:
        """Whether anybody wants to know of every task that goes well: there are too many of these to be told to nobody."""
        return self.observe is not None or self._emit is not log_event or _log.isEnabledFor(logging.DEBUG)

    def __call__(self, event: Event) -> None:
        self._emit(event)
        if self.observe is not None:
            self.observe(event)

    def add(self, observer: Observer) -> None:
        """Tell this one too, from now on. It is called in whatever thread something happens, and must be quick."""
        self._observers = [*self._observers, observer]
        self.observe = self._tell

    def remove(self, observer: Observer) -> None:
        """Tell this one no more."""
        self._observers = [each for each in self._observers if each != observer]
        self.observe = self._tell if self._observers else None

    def trace_id(self) -> str | None:
        """The trace of the code that runs now, if traces are made and it is in one."""
        return None if self.spans is None else self.spans.trace_id()

    def continuing(self, headers: Mapping[str, str]) -> AbstractContextManager[object]:
        """As `Spans.continuing`, where traces are made."""
        return nullcontext() if self.spans is None else self.spans.continuing(headers)

    def _tell(self, event: Event | Measure) -> None:
        for observer in self._observers:
            try:
                observer(event)
            except Exception:
                self.remove(observer)
                _log.exception("an observer failed; it is told nothing more")


def telemetry_of(emit: Emit) -> Telemetry:
    """The telemetry behind an `emit`; one that nobody observes where there is none."""
    return emit if isinstance(emit, Telemetry) else Telemetry(emit)


async def timed(observe: Observer, clock: Clock, operation: str, call: Awaitable[T], size: Callable[[T], int]) -> T:
    """The answer of a store's call, measured."""
    sent_at = clock.monotonic()
    try:
        answer = await call
    except StoreError:
        observe(StoreCalled(operation, clock.monotonic() - sent_at, 0, failed=True))
        raise
    observe(StoreCalled(operation, clock.monotonic() - sent_at, size(answer)))
    return answer
