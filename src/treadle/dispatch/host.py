"""The worker of a coordinator, with a handler for issues; it logs the outcomes of jobs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec

from treadle.agents.host import OWN_KINDS, AgentHost, Profile
from treadle.dispatch.config import DispatchConfig
from treadle.dispatch.records import CHECKPOINT, WORKER_ID, InvalidIssue, TaskState, end_line, notes_of, state_of
from treadle.engine import Engine
from treadle.engine.machine import HostMachine
from treadle.kernel.store.units import Keep, Unit, Verdict
from treadle.kernel.telemetry.events import TaskSettled, TelemetryEvent
from treadle.model.clock import milliseconds
from treadle.model.conversion import plain
from treadle.model.errors import ClaimLost, InvalidPolicy, NonRetryable, TreadleError
from treadle.model.names import HANDLER
from treadle.model.outcomes import Problem, Retry, Succeeded, Waiting
from treadle.model.values import decode, encode
from treadle.workers.context import Context, RegisteredHandler, Registry, make_handler

JobHandler = Callable[..., Any]
"""Takes (task: TaskState) or (task, ctx); results and exceptions mean the same as for every handler, except that a result with
a false `success` (False, None, 0, "") fails the attempt (D64), as an item of a dict or as an attribute of another object."""


class DispatchHost(AgentHost):
    """Runs one handler for the jobs of a coordinator, and logs their outcomes."""

    def __init__(
        self, engine: Engine, config: DispatchConfig, worker_id: str, handler: JobHandler, grace: float, machine: HostMachine
    ) -> None:
        self._worker_id = worker_id
        self._job_name = config.name
        registry = Registry()
        registry.add(_wrapped(engine, config, worker_id, handler))
        super().__init__(
            engine.kernel,
            Profile("default", "dispatch", worker_id, (), config.max_concurrent_tasks),
            concurrency=config.max_concurrent_tasks + OWN_KINDS,
            threads=config.max_concurrent_tasks,
            processes=1,
            task_lists=(config.task_list,),
            lease_for=round(engine.kernel.settings.lease * 1000),
            grace=grace,
            registry=registry,
            poll_every=milliseconds(config.poll_interval) / 1000,
            machine=machine,
        )

    def _heard(self, event: TelemetryEvent) -> None:
        super()._heard(event)
        if not isinstance(event, TaskSettled) or event.name != self._job_name or event.kind != HANDLER:
            return  # this worker also settles the engine's own tasks, which are not jobs
        if event.transition in ("succeed", "fail", "retry"):
            error = None if event.transition == "succeed" else str((decode(event.error) or {}).get("message", "failed"))
            self._log_writer.add(end_line(event.task_id, self._kernel.clock.now(), event.attempt, self._worker_id, error))


def _wrapped(engine: Engine, config: DispatchConfig, worker_id: str, handler: JobHandler) -> RegisteredHandler:
    """Wrap the user's handler: store the job's worker, and pass the job as a typed object."""
    inner = make_handler(config.name, handler, concurrency=config.max_concurrent_tasks)
    if inner.arguments == 0:
        raise InvalidPolicy("A handler of jobs takes (task) or (task, ctx).")
    loop = asyncio.get_running_loop()

    async def on_loop(payload: dict[str, Any], ctx: Context) -> Any:
        job = await _taken(engine, worker_id, payload, ctx)
        return _kept(await inner.call(*(job, ctx)[: inner.arguments]), ctx)

    def in_thread(payload: dict[str, Any], ctx: Context) -> Any:
        job = asyncio.run_coroutine_threadsafe(_taken(engine, worker_id, payload, ctx), loop).result()
        return _kept(inner.call(*(job, ctx)[: inner.arguments]), ctx)

    call: Callable[..., Any] | Callable[..., Awaitable[Any]] = on_loop if inner.isolation == "loop" else in_thread
    return msgspec.structs.replace(inner, call=call, arguments=2)


async def _taken(engine: Engine, worker_id: str, payload: dict[str, Any], ctx: Context) -> TaskState:
    """Return the job after storing its worker under the claim; waits for an unreachable store."""
    task = ctx.task
    try:
        job = state_of(task, payload)
    except InvalidIssue as error:
        raise NonRetryable(str(error), error.code) from None
    job.metadata[WORKER_ID] = worker_id
    task.checkpoint = encode({**notes_of(task), WORKER_ID: worker_id}, "metadata")
    answer = await engine.kernel.committer.submit(Unit(ctx.token, Keep(task.checkpoint)))
    if answer.verdict is not Verdict.DONE:
        raise ClaimLost(task.id, ctx.token.version)
    return job


def _kept(returned: Any, ctx: Context) -> Any:
    """Return the handler's outcome: a reported failure is a failure, and a checkpoint is kept beside the job's worker."""
    result = returned.result if isinstance(returned, Succeeded) else returned
    if not isinstance(result, Mapping) and hasattr(result, "success"):
        result = returned = _fields_of(result)
    if isinstance(result, Mapping) and "success" in result and not result["success"]:
        return Retry(Problem("failed", _reason(result.get("error"))))
    if isinstance(returned, Waiting) and returned.checkpoint is not None:
        return Waiting(returned.wait_for, {**notes_of(ctx.task), CHECKPOINT: returned.checkpoint})
    return returned


def _fields_of(result: Any) -> dict[str, Any]:
    """Return the fields of a result object: of a dataclass or a model all, of any other object its public attributes."""
    as_dict = getattr(result, "_asdict", None)  # of a named tuple
    try:
        fields = plain(result if as_dict is None else as_dict())
    except TreadleError:
        fields = {name: value for name, value in getattr(result, "__dict__", {}).items() if not name.startswith("_")}
    return {**fields, "success": result.success, "error": getattr(result, "error", None)}


def _reason(error: Any) -> str:
    """Return the text of a reported error; it may be any value."""
    if isinstance(error, Mapping) and isinstance(error.get("message"), str):
        error = error["message"]
    if isinstance(error, str) and error.strip():
        return error
    try:
        return "failed" if error is None or error == "" else encode(error, "error")
    except TreadleError:
        return f"failed, with an error of type {type(error).__name__}"
