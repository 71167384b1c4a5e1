"""Interceptors: code of the user around enqueues, starts of runs, calls of handlers, and steps, for tracing, tenants or secrets."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec

from treadle.api.tasks import TaskSpec
from treadle.kernel.queue.service import Enqueued
from treadle.kernel.runs.records import RunRequest, StartedRun
from treadle.model.errors import InvalidInput
from treadle.workers.context import Context


class StepCall(msgspec.Struct, frozen=True):
    """An attempt at a step of a durable function."""

    run_id: str
    function: str
    name: str
    kind: str
    """`step` or `effect`."""
    trace_id: str | None


class Interceptor:
    """Code around the calls of an engine: override methods and pass an instance to `engine.intercept`.

        class Timed(Interceptor):
            async def handler(self, ctx, proceed):
                started = time.monotonic()
                try:
                    return await proceed(ctx)
                finally:
                    print(ctx.task.name, time.monotonic() - started)

    Each method may change its first argument, and returns the result of `proceed`, or another one. An exception that it raises
    counts as that of the call. Context variables that it sets are visible inside. Methods that are not overridden cost nothing.
    """

    async def enqueue(
        self, specs: Sequence[TaskSpec], proceed: Callable[[Sequence[TaskSpec]], Awaitable[list[Enqueued]]]
    ) -> list[Enqueued]:
        """Store tasks, one or many, of this process: of the Python API, or of the server if this is one."""
        return await proceed(specs)

    async def start(self, request: RunRequest, proceed: Callable[[RunRequest], Awaitable[StartedRun]]) -> StartedRun:
        """Start a run of a function or a workflow, also a child; the options of a child are those of `ctx.start`, and `tags`."""
        return await proceed(request)

    async def handler(self, ctx: Context, proceed: Callable[[Context], Awaitable[Any]]) -> Any:
        """Call a handler, sync or async, for one attempt; the result is JSON, its text, or an outcome."""
        return await proceed(ctx)

    async def step(self, step: StepCall, proceed: Callable[[StepCall], Awaitable[Any]]) -> Any:
        """Call the code of a step or an effect for one attempt; a replay, which has its result, calls nothing."""
        return await proceed(step)


def add_interceptor(around: dict[str, list[Callable[[Any, Any], Awaitable[Any]]]], interceptor: Interceptor) -> None:
    """Add the methods that an interceptor overrides, inside of the others."""
    if not isinstance(interceptor, Interceptor):
        raise InvalidInput("engine.intercept takes an instance of a class that derives from treadle.Interceptor.")
    for name in ("enqueue", "start", "handler", "step"):
        if getattr(type(interceptor), name) is not getattr(Interceptor, name):
            around.setdefault(name, []).append(getattr(interceptor, name))
