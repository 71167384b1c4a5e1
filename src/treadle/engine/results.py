"""Results of tasks and runs: wait for the end, then return the value or raise the error."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from treadle.engine.kernel import Kernel
from treadle.kernel.functions.steps import is_function
from treadle.kernel.store.chains import current_run
from treadle.model.clock import Duration, milliseconds
from treadle.model.errors import (
    RunCanceled,
    RunFailed,
    RunNotFound,
    TaskCanceled,
    TaskFailed,
    TaskIgnored,
    TaskNotFound,
    TreadleError,
)
from treadle.model.states import RunState, TaskState
from treadle.model.tasks import Task
from treadle.model.values import Json, decode


async def task_result(kernel: Kernel, task_id: str, timeout: Duration | None) -> dict[str, Json]:
    """Wait for the task and return its result, or raise the error that it ended with."""
    waiters, _ = kernel.results
    found = await waiters.find(task_id)
    if found is None or found.namespace != kernel.settings.namespace:
        raise TaskNotFound(task_id)
    if not found.finished:
        async with _bound("Task", task_id, timeout):
            found = await waiters.wait(task_id)
    if found.state == TaskState.COMPLETED:
        return await kernel.value_store.unpack(found.result)
    raise _error_of(found)


async def run_result(kernel: Kernel, run_id: str, timeout: Duration | None) -> Json:
    """Wait for the run and return its outputs, or a function's return value, or raise the error that it ended with."""
    _, waiters = kernel.results
    runs = kernel.run_services.runs
    asked = await waiters.find(run_id)
    if asked is None or asked.namespace != kernel.settings.namespace:
        raise RunNotFound(run_id)
    found = await current_run(kernel.store, asked)
    async with _bound("Run", run_id, timeout):
        while not found.finished:
            found = await current_run(kernel.store, await waiters.wait(found.id))
    if found.state == RunState.COMPLETED:
        outputs = await runs.outputs(found)
        return outputs.get("result") if is_function(found.flow_id) else outputs
    message = (decode(found.error) or {}).get("message", "")
    if found.state == RunState.CANCELED:
        raise RunCanceled(f"Run {found.id} was canceled: {message}")
    raise RunFailed(found.id, found.failed_step_id, message)


@asynccontextmanager
async def _bound(entity: str, entity_id: str, timeout: Duration | None) -> AsyncIterator[None]:
    """Bound the wait for the end of a task or a chain of runs."""
    seconds = None if timeout is None else milliseconds(timeout, "timeout") / 1000
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        message = f"{entity} {entity_id} has not ended after {seconds:g} s and continues; `why` explains its state."
        raise TimeoutError(message) from None


def _error_of(task: Task) -> TreadleError:
    message = (decode(task.error) or {}).get("message", "")
    match task.state:
        case TaskState.FAILED:
            return TaskFailed(task.id, task.error_code or "failed", message)
        case TaskState.CANCELED:
            return TaskCanceled(f"Task {task.id} was canceled: {message}")
        case _:
            return TaskIgnored(f"Task {task.id} ended as {task.state}.")
