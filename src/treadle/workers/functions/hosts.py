"""Operations in asyncio tasks that a framework creates, such as the tool calls of an agent.

The order in which such tasks reach their operations differs between executions, so a replay finds their steps by name instead of
by position: the steps of a host share one place of its branch, each in a scope of its own.

While the framework's code executes, the branch counts as active. When all operations of the host wait durably and none has begun
for a moment, the branch rests: the run parks and is closed, as nobody can see whether the framework does anything else meanwhile.
A replay continues it. So a run that waits for an approval in a tool occupies no worker.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Protocol, TypeVar

from treadle.model.errors import MisusedContext
from treadle.workers.functions.branches import Branch
from treadle.workers.functions.determinism import executing

if TYPE_CHECKING:
    from treadle.workers.functions.driver import Driver

T_co = TypeVar("T_co", covariant=True)

_MOMENT = 0.05
"""Seconds without a new operation after which a branch rests. A wrong guess costs a replay, nothing else."""


class Operation(Awaitable[T_co], Protocol[T_co]):
    """An operation of `ctx`, not yet awaited."""

    name: str


class Host:
    """The operations of one branch that other asyncio tasks await."""

    def __init__(self, driver: Driver, branch: Branch) -> None:
        self._driver = driver
        self._branch = branch
        self._place = driver.journal.reach_gather(branch, sys.maxsize)
        self._recorded = driver.journal.history.named(self._place)
        self._next = driver.journal.history.width(self._place)
        self._names = Branch()
        self._operations = 0
        self._waiting = 0
        self._resting = False
        self._timer: asyncio.TimerHandle | None = None

    async def run(self, name: str, operation: Operation[T_co]) -> T_co:
        """Await the operation as a branch of its own; a name that is used again is numbered, in the order of the calls."""
        driver, task = self._driver, asyncio.current_task()
        execution = driver.execution
        if execution.closed or task is None:
            raise asyncio.CancelledError
        operation.name = self._names.number(name)
        index = self._recorded.pop(operation.name, None)
        if index is None:
            index, self._next = self._next, self._next + 1
        branch = Branch(f"{self._place}.{index}.", self._branch)
        branch.host = self
        before = driver.branches.enter_as(task, branch)
        token = executing.set((execution.function.name, execution.function.code, branch))
        self._operations += 1
        execution.active += 1
        self._wake()
        try:
            return await operation
        finally:
            executing.reset(token)
            driver.branches.leave(task, before)
            self._operations -= 1
            if branch.waiting is not None:  # the framework canceled a task that waits
                execution.abandon(branch.waiting)
            execution.active -= 1
            if not execution.closed:
                driver.recorder.share(branch)
                self._consider()

    def number(self, name: str) -> str:
        """Return an id that is unique in the run, the same in every replay if the calls come in the same order."""
        return f"{self._place}/{self._names.number(name)}"

    # called by the execution

    def suspended(self) -> None:
        """Count an operation that begins to wait durably."""
        self._waiting += 1
        self._consider()

    def resumed(self) -> None:
        """Count an operation that continues."""
        self._waiting -= 1
        self._wake()

    def _consider(self) -> None:
        if self._is_idle() and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_MOMENT, self._rest)

    def _is_idle(self) -> bool:
        return 0 < self._operations == self._waiting

    def _rest(self) -> None:
        self._timer = None
        execution = self._driver.execution
        if self._is_idle() and not self._resting and not execution.closed:
            self._resting = True
            execution.resting += 1
            execution.active -= 1
            execution.schedule()

    def _wake(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._resting:
            self._resting = False
            self._driver.execution.resting -= 1
            self._driver.execution.active += 1


def host_of(driver: Driver) -> Host:
    """Return the host of the branch that the calling task belongs to; the next operation of the branch itself ends it."""
    current = executing.get()
    if current is None or current[2].host is not None:
        raise MisusedContext("ctx.hosted was called outside a function, or inside another operation.")
    branch = current[2]
    if branch.hosting is None:
        branch.hosting = Host(driver, branch)
    return branch.hosting
