"""The part of `Engine` that is about durable functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from treadle.model.names import DEFAULT_LIST, PLAN
from treadle.model.values import Json
from treadle.workers.functions.registry import MAX_STEPS, FunctionRegistry, make_function

if TYPE_CHECKING:
    from treadle.kernel.functions.service import Functions
    from treadle.kernel.runs.service import StartedRun
    from treadle.wiring.runs import RunKernel

F = TypeVar("F", bound=Callable[..., Any])


class FunctionFace:
    """Registering, starting and telling durable functions."""

    function_registry: FunctionRegistry

    @property
    def run_kernel(self) -> RunKernel:
        """What runs need."""
        raise NotImplementedError

    @property
    def functions(self) -> Functions:
        """Starting, telling and operating runs of durable functions."""
        return self.run_kernel.functions

    def function(
        self, name: str, *, version: int = 1, max_steps: int = MAX_STEPS, concurrency: int | None = None
    ) -> Callable[[F], F]:
        """Register the decorated `async def` as a durable function; it takes (payload), (payload, ctx) or nothing.

        It returns any JSON. A run is pinned to the `version` it began with; several versions may be registered. `max_steps` caps
        the steps of one run, `concurrency` how many of its runs execute at once in a process.
        """

        def register(call: F) -> F:
            self.function_registry.add(make_function(name, call, version=version, max_steps=max_steps, concurrency=concurrency))
            return call

        return register

    async def start_function(
        self,
        name: str,
        payload: Mapping[str, Json] | None = None,
        *,
        version: int | None = None,
        idempotency_key: str | None = None,
        task_list: str = DEFAULT_LIST,
        priority: int = 0,
        trace_id: str | None = None,
        actor: str | None = None,
    ) -> StartedRun:
        """Start a durable function; when this returns, the run is durable.

        The version is the newest that is registered here, else the newest that is known. With an idempotency key, a second start
        names the first run and changes nothing.
        """
        from treadle.kernel.runs.service import StartedRun

        run_id, created = await self.functions.start(
            name,
            payload,
            version=version,
            idempotency_key=idempotency_key,
            task_list=task_list,
            priority=priority,
            trace_id=trace_id,
            actor=actor,
        )
        return StartedRun(run_id, created)

    async def start_plan(
        self, steps: Sequence[Mapping[str, Json]], inputs: Mapping[str, Json] | None = None, **options: Any
    ) -> StartedRun:
        """Start a declarative plan: an ordered list of {name, handler, arguments, retry, approval, task_list}, checked now.

        Arguments may refer to earlier results and to the inputs: `{"$from": "charge.receipt"}`. `approval` asks a person before the
        step: true, or options as for `ctx.approval`. The run returns the results by name. Options as for `start_function`.
        """
        from treadle.model.plans import read_plan

        read_plan(steps)
        return await self.start_function(PLAN, {"steps": list(steps), "inputs": dict(inputs or {})}, **options)

    async def signal(
        self,
        run: StartedRun | str,
        name: str,
        payload: Json = None,
        *,
        idempotency_key: str | None = None,
        actor: str | None = None,
    ) -> bool:
        """Tell a run something that its function waits for, or will: `await ctx.wait_for(name)`.

        False if the key stands for a signal that it was told already; `IllegalMove` if the run is finished. `actor`: who the run's
        lines say it came from.
        """
        run_id = run if isinstance(run, str) else run.id
        return await self.functions.signal(run_id, name, payload, idempotency_key=idempotency_key, actor=actor)
