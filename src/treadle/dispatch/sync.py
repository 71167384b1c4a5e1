"""The blocking facade of `AgentCoordinator`, for code without an event loop; thread-safe."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from treadle.agents.connection import Connection
from treadle.dispatch.config import DispatchConfig
from treadle.dispatch.coordinator import AgentCoordinator
from treadle.dispatch.records import TaskState, TaskStatus

P = ParamSpec("P")
T = TypeVar("T")


def _blocking(method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]) -> Callable[Concatenate[Any, P], T]:
    @wraps(method)
    def call(self: BlockingCoordinator, /, *arguments: P.args, **options: P.kwargs) -> T:
        return self._on_loop(method(self._inner, *arguments, **options))

    return call


class BlockingCoordinator:
    """`AgentCoordinator` on an agent's store; methods take the arguments of the methods of the same name there."""

    def __init__(self, connection: Connection, config: DispatchConfig | None = None) -> None:
        self._on_loop = connection.run
        self._inner: AgentCoordinator = connection.run(_call(AgentCoordinator, connection.engine, config))
        self.config = self._inner.config

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    enqueue = _blocking(AgentCoordinator.enqueue)
    submit = _blocking(AgentCoordinator.submit)
    dequeue = _blocking(AgentCoordinator.dequeue)
    update_status = _blocking(AgentCoordinator.update_status)
    retry = _blocking(AgentCoordinator.retry)
    cancel = _blocking(AgentCoordinator.cancel)
    get_task = _blocking(AgentCoordinator.get_task)
    get_all_tasks = _blocking(AgentCoordinator.get_all_tasks)
    list_jobs = _blocking(AgentCoordinator.list_jobs)
    get_logs = _blocking(AgentCoordinator.get_logs)
    desired_workers = _blocking(AgentCoordinator.desired_workers)
    start = _blocking(AgentCoordinator.start)
    run = _blocking(AgentCoordinator.run)
    stop = _blocking(AgentCoordinator.stop)

    def iter_tasks(self, *, status: TaskStatus | str | None = None, before_id: str | None = None) -> Iterator[TaskState]:
        """Iterate over all jobs, newest first, page by page; jobs enqueued meanwhile are not included."""
        more = True
        while more:
            page, before_id, more = self.list_jobs(status=status, before_id=before_id)
            yield from page

    def holds(self, task_id: str) -> bool:
        """Whether this object still holds the job."""
        return self._on_loop(_call(self._inner.holds, task_id))

    def drain(self) -> None:
        """Dequeue nothing from now on; held jobs continue, and can be settled."""
        self._on_loop(_call(self._inner.drain))


async def _call(function: Callable[P, T], *arguments: P.args, **options: P.kwargs) -> T:
    return function(*arguments, **options)
