"""Runs the tasks of functions for a worker, keeps a bounded number of suspended functions in memory, and runs declarative plans."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Coroutine
from typing import Any

from treadle.kernel.functions.decide import read_request
from treadle.kernel.store.units import Finish, Requeue
from treadle.model.errors import InvalidPlan, NonRetryable
from treadle.model.names import PLAN
from treadle.model.plans import INPUTS, read_plan, resolve
from treadle.model.tasks import Task
from treadle.model.values import Json
from treadle.workers.context import Context, RegisteredHandler
from treadle.workers.functions.context import FunctionContext, current
from treadle.workers.functions.driver import Driver, SetSettling
from treadle.workers.functions.execution import Runtime, current_code
from treadle.workers.functions.registry import FunctionRegistry, RegisteredFunction, make_function, watch

WARM_LIMIT = 1000
"""Suspended functions that a process keeps warm; it replays all others when they continue."""

MakeDriver = Callable[[Runtime, RegisteredFunction, Task], Driver]


class FunctionRunner:
    """Runs the functions of one worker; the least recently used warm ones are evicted first."""

    def __init__(
        self, registry: FunctionRegistry, runtime: Runtime, warm_limit: int = WARM_LIMIT, driver: MakeDriver = Driver
    ) -> None:
        self._registry = registry
        self.runtime = runtime
        self._warm_limit = warm_limit
        self._driver = driver
        watch(current_code)
        self._warm: OrderedDict[str, Driver] = OrderedDict()

    def find(self, queue_name: str) -> RegisteredHandler | None:
        """Return the handler of the function of a queue."""
        function = self._registry.find(queue_name)
        return None if function is None else function.handler

    @property
    def warm(self) -> int:
        """Number of warm functions."""
        return len(self._warm)

    async def execute(self, task: Task, context: Context, set_settling: SetSettling) -> Requeue | Finish | None:
        """Execute the function until it is suspended or ends; None if the claim was lost."""
        function = self._registry.find(task.name)
        assert function is not None
        driver = self._take(task) or self._driver(self.runtime, function, task)

        def start(payload: Any) -> Coroutine[Any, Any, Any]:
            handler = function.handler
            ctx = FunctionContext(driver)
            current.set(ctx)
            code: Coroutine[Any, Any, Any] = handler.call(*(payload, ctx)[: handler.arguments])
            return code

        token = current.set(None)
        try:
            settled = await driver.execute(task, context, start, set_settling)
        finally:
            current.reset(token)
        if settled is not None and not driver.execution.closed:
            self._keep(task.id, driver)
        return settled

    def _take(self, task: Task) -> Driver | None:
        """Return the warm function, unless another process has had the task since, or it ended and was made live again."""
        driver = self._warm.pop(task.id, None)
        if driver is None:
            return None
        canceled = read_request(task) is not None and driver.execution.cancel is None  # a replay raises it where it waits
        before = driver.execution.task
        if (before.claim_version + 1, before.attempt) == (task.claim_version, task.attempt) and not canceled:
            return driver
        driver.close()
        return None

    def _keep(self, task_id: str, driver: Driver) -> None:
        driver.execution.context = None
        self._warm[task_id] = driver
        while len(self._warm) > self._warm_limit:
            self._warm.popitem(last=False)[1].close()

    def close(self) -> None:
        """Evict all warm functions; the store has everything."""
        for driver in self._warm.values():
            driver.close()
        self._warm.clear()


async def run_plan(payload: dict[str, Any], ctx: FunctionContext) -> dict[str, Json]:
    """Run the steps in order, and return their results by name."""
    results: dict[str, Json] = {INPUTS: payload.get("inputs") or {}}
    for step in read_plan(payload["steps"]):
        try:
            arguments = resolve(step.arguments, results)
        except InvalidPlan as error:
            raise NonRetryable(str(error), error.code) from None
        if step.approval is not None:
            options = dict(step.approval)
            question = options.pop("question", f"May {step.name} ({step.handler}) go ahead?")
            decision = await ctx.approval(question, context=arguments, **options)
            if options.get("edits") and isinstance(decision.get("context"), dict):
                arguments = decision["context"]
        results[step.name] = await ctx.call(step.handler, arguments, name=step.name, retry=step.retry, task_list=step.task_list)
    del results[INPUTS]
    return results


def plan_function() -> RegisteredFunction:
    """Return the function, which every process registers."""
    return make_function(PLAN, run_plan, max_steps=25_000, cleanup_timeout=0)
