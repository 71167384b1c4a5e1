"""The parts that the kernel services of one engine share: its store, the way to it, its ids, clocks and limits."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from treadle.kernel.store.committer import Committer
from treadle.kernel.store.lookups import find_id
from treadle.kernel.store.ports import Store
from treadle.kernel.store.value_store import ValueStore
from treadle.kernel.telemetry.events import Emit, log_event
from treadle.model.clock import Clock
from treadle.model.errors import RunNotFound, TaskNotFound
from treadle.model.ids import Ids, Ref
from treadle.model.names import DEFAULT_NAMESPACE
from treadle.model.runs import Run
from treadle.model.tasks import Task, TaskLimit
from treadle.model.values import PAYLOAD_LIMIT

STORE_TIMEOUT = 15.0
"""Seconds that a caller waits for an unreachable store before `StoreUnavailable` is raised."""


T = TypeVar("T")
R = TypeVar("R")
Around = Mapping[str, Sequence[Callable[[Any, Any], Awaitable[Any]]]]
"""Methods of interceptors by name, the outermost first."""


async def intercepted(around: Around, name: str, request: T, call: Callable[[T], Awaitable[R]]) -> R:
    """Call with the request inside of the interceptors of that name."""

    def inside(method: Callable[[Any, Any], Awaitable[Any]], call: Callable[[T], Awaitable[R]]) -> Callable[[T], Awaitable[R]]:
        return lambda request: method(request, call)

    for method in reversed(around.get(name, ())):
        call = inside(method, call)
    return await call(request)


@dataclass(frozen=True)
class Core:
    """The parts of one engine on one namespace."""

    store: Store
    committer: Committer
    value_store: ValueStore
    ids: Ids
    clock: Clock
    emit: Emit = log_event
    namespace: str = DEFAULT_NAMESPACE
    payload_limit: int = PAYLOAD_LIMIT
    patience: float = STORE_TIMEOUT
    current_trace_id: Callable[[], str | None] = lambda: None
    """The trace of the caller."""
    current_baggage: Callable[[], str | None] | None = None
    """The values of the caller's context variables, as stored; None: no variable is propagated."""

    around: Around = field(default_factory=dict)
    """The interceptors of the engine."""

    limits_for: Callable[[str, Mapping[str, Any]], Mapping[str, TaskLimit]] = lambda name, payload: {}
    """Returns the limit keys that the handler declares for a task with the payload, each with the limit that the task sets."""

    def baggage(self) -> str | None:
        """Return the values of the caller's context variables, as stored."""
        return None if self.current_baggage is None else self.current_baggage()


class Service:
    """A kernel service of one namespace."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._store = core.store
        self._committer = core.committer
        self._value_store = core.value_store
        self._ids = core.ids
        self._clock = core.clock
        self._emit = core.emit
        self._namespace = core.namespace
        self._patience = core.patience

    async def _get_run(self, run_id: Ref) -> Run:
        """Return the run, or raise `RunNotFound`, also for a run of another namespace."""
        run_id = await find_id(self._store, self._namespace, "run", run_id)
        run = await self._store.runs.find(run_id)
        if run is None or run.namespace != self._namespace:
            raise RunNotFound(run_id)
        return run

    async def _get_task(self, task_id: Ref) -> Task:
        """Return the task, or raise `TaskNotFound`, also for a task of another namespace."""
        task_id = await find_id(self._store, self._namespace, "task", task_id)
        task = await self._store.tasks.find(task_id)
        if task is None or task.namespace != self._namespace:
            raise TaskNotFound(task_id)
        return task
