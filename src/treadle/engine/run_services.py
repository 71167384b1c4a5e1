"""Kernel services for runs of workflows and functions, built on first use; most workers need few of them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from treadle.kernel.core import intercepted
from treadle.kernel.functions.service import Functions
from treadle.kernel.settler import Settler
from treadle.model.states import RUN
from treadle.model.usage import micros
from treadle.model.values import Json
from treadle.workers.log_writer import LogWriter

if TYPE_CHECKING:
    from treadle.api.flows import FlowsApi
    from treadle.api.functions import FunctionsApi
    from treadle.api.steps import StepsApi
    from treadle.engine.kernel import Kernel
    from treadle.kernel.functions.operations import FunctionRuns
    from treadle.kernel.runs.advancer import Advancer
    from treadle.kernel.runs.flows import Flows, Source
    from treadle.kernel.runs.operations import RunOperations
    from treadle.kernel.runs.records import RunRequest, StartedRun
    from treadle.kernel.runs.service import Runs
    from treadle.kernel.runs.steps import StepReads
    from treadle.kernel.traces import TraceReads


class RunServices:
    """Flows, runs, durable functions and the settler."""

    def __init__(self, kernel: Kernel) -> None:
        external_jobs = kernel.external_jobs
        self.functions = Functions(
            kernel.core,
            kernel.function_registry.newest,
            kernel.function_registry.cleanup_for,
            cancel_rows=kernel.cancel_rows,
            cancel_tasks=external_jobs.tasks_for_run,
            cancel=lambda: self.function_runs.cancel,
            deadlines=kernel.settings.run_deadlines,
        )
        self.functions.on_finished.append(kernel.run_finished)
        self.settler = Settler(
            kernel.core,
            lambda: self.advancer,
            self.functions,
            kernel.approvals,
            external_jobs,
            {kind: extension.settle for extension in kernel.extensions for kind in extension.kinds},
        )
        self.log_lines = LogWriter(kernel.store, kernel.emit)
        """Writes the log lines of flows, for all workers of the engine."""
        self._kernel = kernel

    @cached_property
    def flows(self) -> Flows:
        """Compiled and published AFL."""
        from treadle.kernel.runs.flows import Flows

        return Flows(self._kernel.core)

    @cached_property
    def advancer(self) -> Advancer:
        """Advances runs of workflows."""
        from treadle.evaluator import Limits
        from treadle.kernel.runs.advancer import Advancer

        kernel, settings = self._kernel, self._kernel.settings
        advancer = Advancer(
            kernel.core,
            self.flows,
            Limits(depth=settings.run_depth, total_rows=settings.run_rows, slice_bytes=settings.advance_bytes),
            cancel_rows=kernel.cancel_rows,
            cancel_tasks=kernel.external_jobs.tasks_for_run,
            withdraw_rows=partial(kernel.approvals.rows_for_run, why="its run will fail"),
        )
        advancer.on_line.append(self.log_lines.add)
        advancer.on_finished.append(kernel.run_finished)
        return advancer

    @cached_property
    def reads(self) -> StepReads:
        """Reads of runs and their steps."""
        from treadle.kernel.runs.steps import StepReads

        return StepReads(self._kernel.core, why_awaiting=self._kernel.why_awaiting)

    @cached_property
    def function_runs(self) -> FunctionRuns:
        """Operations on runs of functions."""
        from treadle.kernel.functions.operations import FunctionRuns

        return FunctionRuns(self._kernel.core, self.functions)

    @cached_property
    def runs(self) -> Runs:
        """Operations on runs: start, pause, cancel, retry."""
        from treadle.kernel.runs.service import Runs

        kernel, settings = self._kernel, self._kernel.settings
        return Runs(
            kernel.core,
            self.advancer,
            self.flows,
            self.function_runs,
            finishing=settings.finish_on_failure,
            deadlines=settings.run_deadlines,
        )

    @cached_property
    def traces(self) -> TraceReads:
        """Everything that followed from one start."""
        from treadle.kernel.traces import TraceReads

        kernel = self._kernel
        return TraceReads(kernel.core, self.reads)

    async def start_run(
        self,
        flow: str | Sequence[Source],
        workflow: str | None = None,
        inputs: Mapping[str, Json] | None = None,
        *,
        budget: float | None = None,
        **options: Any,
    ) -> StartedRun:
        """Start a workflow, with a budget for its model requests if given."""

        async def start(request: RunRequest) -> StartedRun:
            begin = partial(self.runs.start, flow, request.name or None, request.payload, **request.options)
            return await self._start(budget, lambda run_id: begin(run_id=run_id))

        return await self._intercepted(start, workflow or "", inputs, options)

    async def start_function(
        self, name: str, payload: Mapping[str, Json] | None = None, *, budget: float | None = None, **options: Any
    ) -> StartedRun:
        """Start a durable function, with a budget for its model requests if given."""
        from treadle.kernel.runs.records import StartedRun

        async def start(request: RunRequest) -> StartedRun:
            async def begin(run_id: str | None) -> StartedRun:
                return StartedRun(*await self.functions.start(request.name, request.payload, run_id=run_id, **request.options))

            return await self._start(budget, begin)

        return await self._intercepted(start, name, payload, options)

    async def _intercepted(
        self,
        start: Callable[[RunRequest], Awaitable[StartedRun]],
        name: str,
        payload: Mapping[str, Json] | None,
        options: Mapping[str, Any],
    ) -> StartedRun:
        from treadle.kernel.runs.records import RunRequest

        return await intercepted(self._kernel.core.around, "start", RunRequest(name, payload, options), start)

    async def _start(self, budget: float | None, start: Callable[[str | None], Awaitable[StartedRun]]) -> StartedRun:
        """Start a run whose budget, if it has one, applies before any task of the run can be claimed."""
        if budget is None:
            return await start(None)
        kernel, started = self._kernel, None
        run_id = kernel.ids.new_id()
        await kernel.store.usage.set_budget(run_id, micros(budget))
        try:
            started = await start(run_id)
        finally:
            if started is None or not started.created:
                await kernel.store.usage.forget_budget(run_id)
        return started

    # operations of the API

    @cached_property
    def run_operations(self) -> RunOperations:
        """Operations on runs."""
        from treadle.kernel.runs.operations import RunOperations

        kernel = self._kernel
        return RunOperations(
            kernel.core,
            self.runs,
            self.reads,
            self.functions,
            self.flows,
            lambda: kernel.search,
            kernel.task_records,
            self.start_run,
            lambda run_id, timeout: kernel.results.of(run_id, timeout, RUN.entity),
        )

    @cached_property
    def function_operations(self) -> FunctionsApi:
        """Operations on durable functions."""
        from treadle.kernel.runs.operations import FunctionOperations

        return FunctionOperations(self.functions, self.function_runs, self.run_operations, self.start_function)

    @cached_property
    def step_operations(self) -> StepsApi:
        """Operations on steps."""
        from treadle.kernel.runs.steps import StepOperations

        kernel = self._kernel
        return StepOperations(
            kernel.core,
            self.reads,
            kernel.task_records,
            self.runs,
            self.functions,
            self.flows,
        )

    @cached_property
    def flow_operations(self) -> FlowsApi:
        """Operations on flows."""
        from treadle.kernel.runs.flow_operations import FlowOperations
        from treadle.workers.flow_dry_run import dry_run_flow

        return FlowOperations(self.flows, self.reads, dry_run_flow)
