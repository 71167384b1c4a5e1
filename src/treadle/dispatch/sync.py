"""The blocking facade of `AgentCoordinator`, for code without an event loop; thread-safe."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from treadle.agents.connection import Connection
from treadle.dispatch.config import DispatchConfig
from treadle.dispatch.coordinator import AgentCoordinator
from treadle.dispatch.host import JobHandler
from treadle.dispatch.issues import GitHubIssue
from treadle.dispatch.records import TaskState, TaskStatus
from treadle.kernel.reads.scaling import Scaling
from treadle.model.tasks import LogLine


class BlockingCoordinator:
    """`AgentCoordinator` on an agent's store; methods take the arguments of the methods of the same name there."""

    def __init__(self, connection: Connection, config: DispatchConfig | None = None) -> None:
        self._run = connection.run
        self._inner: AgentCoordinator = connection.run(_made(connection, config))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def enqueue(self, issue: GitHubIssue | Mapping[str, Any], **options: Any) -> str:
        return self._run(self._inner.enqueue(issue, **options))

    def dequeue(self, worker_id: str) -> TaskState | None:
        return self._run(self._inner.dequeue(worker_id))

    def update_status(self, task_id: str, status: TaskStatus | str, error: str | None = None, **options: Any) -> None:
        self._run(self._inner.update_status(task_id, status, error, **options))

    def retry(self, task_id: str) -> None:
        self._run(self._inner.retry(task_id))

    def cancel(self, task_id: str, *, reason: str | None = None) -> None:
        self._run(self._inner.cancel(task_id, reason=reason))

    def get_task(self, task_id: str) -> TaskState | None:
        return self._run(self._inner.get_task(task_id))

    def get_all_tasks(self, **options: Any) -> list[TaskState]:
        return self._run(self._inner.get_all_tasks(**options))

    def get_logs(self, task_id: str, limit: int = 100) -> list[LogLine]:
        return self._run(self._inner.get_logs(task_id, limit))

    def desired_workers(self, **options: Any) -> Scaling:
        return self._run(self._inner.desired_workers(**options))

    def start(self, handler: JobHandler, **options: Any) -> None:
        """Run the handler in the background until `stop`."""
        self._run(self._inner.start(handler, **options))

    def stop(self) -> None:
        self._run(self._inner.stop())


async def _made(connection: Connection, config: DispatchConfig | None) -> AgentCoordinator:
    return AgentCoordinator(connection.engine, config)
