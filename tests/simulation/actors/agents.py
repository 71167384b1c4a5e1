"""Agents that do issues: some dequeue them one by one, some let a coordinator run a handler."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from tests.simulation.submissions.dispatch import CONFIG

from treadle.dispatch import AgentCoordinator, StorageError, TaskState, WorkerUnavailable
from treadle.model.errors import ClaimLost, IllegalTransition, NotFound, Refused, StoreError
from treadle.testing.simulation import Process

if TYPE_CHECKING:
    from tests.simulation.history import History


class Agent:
    """One process with a coordinator."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._rng = history.rng

    async def play(self, process: Process) -> None:
        """Work in one way or the other, as long as the process lives."""
        coordinator = AgentCoordinator(self._history.engine(process, lease=self._history.simulation.lease), CONFIG, machine=process)
        async with coordinator.engine:
            if self._rng.random() < 0.5:
                await coordinator.run(self._handler(process), worker_id=process.shown, grace=0)
            else:
                await self._dequeue(coordinator, process)

    def _handler(self, process: Process) -> Any:
        async def do(task: TaskState) -> dict[str, Any]:
            await asyncio.sleep(self._takes(task))
            if self._fails(task):
                raise OSError("not yet")
            return {"key": task.metadata["key"], "by": process.shown}

        return do

    async def _dequeue(self, coordinator: AgentCoordinator, process: Process) -> None:
        while True:
            await asyncio.sleep(0.2 + self._rng.random())
            try:
                task = await coordinator.dequeue(process.shown)
                if task is not None:
                    await self._do(coordinator, process, task)
            except (StorageError, StoreError, WorkerUnavailable) as error:
                process.trace(f"dequeues: {type(error).__name__}")

    async def _do(self, coordinator: AgentCoordinator, process: Process, task: TaskState) -> None:
        process.trace(f"has {task.id[-6:]}")
        await asyncio.sleep(self._takes(task))
        await self._history.stand_still(process)
        fails = self._fails(task)
        while True:
            try:
                if fails:
                    await coordinator.update_status(task.id, "failed", "not yet", retry=True, worker_id=process.shown)
                else:
                    result = {"key": task.metadata["key"], "by": process.shown}
                    await coordinator.update_status(task.id, "completed", result=result, worker_id=process.shown)
                return
            except StorageError:
                continue
            except (ClaimLost, IllegalTransition, NotFound, Refused) as error:
                process.trace(f"has lost {task.id[-6:]}: {type(error).__name__}")
                return

    def _takes(self, task: TaskState) -> float:
        return 0.3 if task.issue.body == "quick" else 6 * self._rng.random()

    def _fails(self, task: TaskState) -> bool:
        """The first two executions of one that fails do."""
        entered = self._history.world.entered
        entered[task.id] += 1
        return task.issue.body == "failing" and entered[task.id] <= 2
