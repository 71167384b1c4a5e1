"""The blocking facade of `AgentCoordinator`, for code without an event loop; thread-safe."""

from __future__ import annotations

from typing import Self

from treadle.agents.connection import Connection
from treadle.dispatch.config import DispatchConfig
from treadle.dispatch.coordinator import AgentCoordinator
from treadle.engine.sync import blocking


class BlockingCoordinator:
    """`AgentCoordinator` on an agent's store; methods take the arguments of the methods of the same name there."""

    def __init__(self, connection: Connection, config: DispatchConfig | None = None) -> None:
        self.run = connection.run
        self._inner: AgentCoordinator = connection.run(_made(connection, config))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    enqueue = blocking(AgentCoordinator.enqueue)
    dequeue = blocking(AgentCoordinator.dequeue)
    update_status = blocking(AgentCoordinator.update_status)
    retry = blocking(AgentCoordinator.retry)
    cancel = blocking(AgentCoordinator.cancel)
    get_task = blocking(AgentCoordinator.get_task)
    get_all_tasks = blocking(AgentCoordinator.get_all_tasks)
    get_logs = blocking(AgentCoordinator.get_logs)
    desired_workers = blocking(AgentCoordinator.desired_workers)
    start = blocking(AgentCoordinator.start)
    stop = blocking(AgentCoordinator.stop)


async def _made(connection: Connection, config: DispatchConfig | None) -> AgentCoordinator:
    return AgentCoordinator(connection.engine, config)
