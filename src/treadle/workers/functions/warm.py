"""Executes functions' tasks for a worker, and keeps suspended functions warm: a bounded number, the least used go first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from treadle.model.tasks import Task
from treadle.workers.context import Context
from treadle.workers.functions.context import FunctionContext
from treadle.workers.functions.driver import Driver
from treadle.workers.functions.registry import Function, FunctionRegistry
from treadle.workers.functions.runtime import Runtime, Settled
from treadle.workers.handlers import Handler

WARM_LIMIT = 1000
"""Suspended functions that a process keeps warm; all others are replayed when they go on."""


class FunctionRunner:
    """The functions of one worker."""

    def __init__(self, registry: FunctionRegistry, runtime: Runtime, warm_limit: int = WARM_LIMIT) -> None:
        self._registry = registry
        self._runtime = runtime
        self._warm_limit = warm_limit
        self._warm: OrderedDict[str, Driver] = OrderedDict()

    def find(self, lane_name: str) -> Handler | None:
        """What a worker needs to know of the function of a lane."""
        function = self._registry.find(lane_name)
        return None if function is None else function.handler

    @property
    def warm(self) -> int:
        """How many suspended functions are warm."""
        return len(self._warm)

    async def execute(self, task: Task, context: Context, settling: Callable[[bool], None]) -> Settled | None:
        """Execute the function until it parks or ends; None if the claim was lost."""
        function = self._registry.find(task.name)
        assert function is not None
        driver = self._take(task) or self._make(function, task)
        settled = await driver.execute(task, context, settling)
        if settled is not None and driver.parked:
            self._keep(task.id, driver)
        return settled

    def _make(self, function: Function, task: Task) -> Driver:
        driver = Driver(self._runtime, function, task)
        driver.ctx = FunctionContext(driver)
        return driver

    def _take(self, task: Task) -> Driver | None:
        """The warm coroutine, if nobody else had the task since."""
        driver = self._warm.pop(task.id, None)
        if driver is None or driver.token.version + 1 == task.claim_version:
            return driver
        driver.close()
        return None

    def _keep(self, task_id: str, driver: Driver) -> None:
        driver.context = None
        self._warm[task_id] = driver
        while len(self._warm) > self._warm_limit:
            self._warm.popitem(last=False)[1].close()

    def close(self) -> None:
        """Let all of them go; the store has everything."""
        for driver in self._warm.values():
            driver.close()
        self._warm.clear()
