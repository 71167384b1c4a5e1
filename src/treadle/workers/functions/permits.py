"""Permits: a step with a limit key starts under a claim of the function's task that counts against the key.

The function's task takes the key when it parks, waits in line for it like any other task, and holds it from its next claim until
the step has ended. So one claim permits one start, in whichever process, and a function that waits for its turn occupies no worker.
Steps of one run that have limit keys take turns.
"""

from __future__ import annotations

import asyncio

from treadle.kernel.store.units import LimitTask
from treadle.workers.functions.branches import Branch
from treadle.workers.functions.execution import Execution


class Permits:
    """The permits of one run in this process."""

    def __init__(self, execution: Execution) -> None:
        self._execution = execution
        self._unused: str | None = None
        self._held = False
        """Whether the task has a limit key in the store."""
        self._waiting: list[tuple[str, asyncio.Future[None]]] = []

    def claimed(self) -> None:
        """Let the first branch continue that waits for the key of the new claim."""
        self._unused = self._execution.task.limit_key
        self._held = self._unused is not None
        for waiting in self._waiting:
            if waiting[0] == self._unused:
                self._waiting.remove(waiting)
                self._execution.resume(waiting[1])
                break

    async def acquire(self, key: str) -> None:
        """Suspend the calling branch until a claim permits one start under the key."""
        while self._unused != key:
            future = self._execution.suspend()
            waiting = (key, future)
            self._waiting.append(waiting)
            try:
                await self._execution.suspended(future)
            finally:
                if waiting in self._waiting:
                    self._waiting.remove(waiting)
        self._unused = None

    def release(self, branch: Branch) -> None:
        """Give the permit back with the next commit of the branch."""
        self._held = False
        branch.next_unit().rows.append(LimitTask(self._execution.task.id, None))

    @property
    def wanted(self) -> str | None:
        """The key that a branch waits for."""
        return self._waiting[0][0] if self._waiting else None

    def change(self) -> tuple[LimitTask, ...]:
        """Return the row for a park: it takes the key that a branch waits for, or gives back an unused one."""
        if self.wanted is None and not self._held:
            return ()
        return (LimitTask(self._execution.task.id, self.wanted),)
