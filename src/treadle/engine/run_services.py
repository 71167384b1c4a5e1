"""Kernel services for runs of workflows and functions, built on first use; most workers need few of them."""

from __future__ import annotations

from functools import cached_property, partial
from typing import TYPE_CHECKING

from treadle.kernel.functions.service import Functions
from treadle.kernel.settler import Settler
from treadle.workers.log_writer import LazyLogWriter

if TYPE_CHECKING:
    from treadle.engine.kernel import Kernel
    from treadle.kernel.functions.operations import FunctionRuns
    from treadle.kernel.runs.advancer import Advancer
    from treadle.kernel.runs.bulk import BulkRuns
    from treadle.kernel.runs.flows import Flows
    from treadle.kernel.runs.reads import RunReads
    from treadle.kernel.runs.redo import Redos
    from treadle.kernel.runs.service import Runs
    from treadle.kernel.runs.step_reads import StepReads
    from treadle.kernel.traces.reads import TraceReads


class RunServices:
    """Flows, runs, durable functions and the settler."""

    def __init__(self, kernel: Kernel) -> None:
        external_jobs = kernel.external_jobs
        self.functions = Functions(
            kernel.store,
            kernel.committer,
            kernel.value_store,
            kernel.ids,
            kernel.clock,
            kernel.function_registry.newest,
            kernel.function_registry.cleanup_for,
            namespace=kernel.settings.namespace,
            payload_limit=kernel.settings.payload_limit,
            cancel_rows=kernel.cancel_rows,
            cancel_tasks=external_jobs.tasks_for_run,
            current_trace_id=kernel.telemetry.trace_id,
            deadlines=kernel.settings.run_deadlines,
        )
        self.functions.on_finished.append(kernel.run_finished)
        self.settler = Settler(
            kernel.committer,
            kernel.value_store,
            lambda: self.advancer,
            self.functions,
            kernel.approvals,
            external_jobs,
            {kind: extension.settle for extension in kernel.extensions for kind in extension.kinds},
        )
        self.log_lines = LazyLogWriter(kernel.store, kernel.emit)
        """Writes the log lines of flows, for all workers of the engine."""
        self._kernel = kernel

    @cached_property
    def flows(self) -> Flows:
        """Compiled and published AFL."""
        from treadle.kernel.runs.flows import Flows

        kernel = self._kernel
        return Flows(kernel.store, kernel.committer, kernel.value_store, namespace=kernel.settings.namespace)

    @cached_property
    def advancer(self) -> Advancer:
        """Advances runs of workflows."""
        from treadle.evaluator import Limits
        from treadle.kernel.runs.advancer import Advancer

        kernel, settings = self._kernel, self._kernel.settings
        made = Advancer(
            kernel.store,
            kernel.committer,
            self.flows,
            kernel.value_store,
            kernel.clock.now,
            kernel.emit,
            Limits(depth=settings.run_depth, total_rows=settings.run_rows, slice_bytes=settings.advance_bytes),
            cancel_rows=kernel.cancel_rows,
            cancel_tasks=kernel.external_jobs.tasks_for_run,
            withdraw_rows=partial(kernel.approvals.rows_for_run, why="its run will fail"),
        )
        made.on_line.append(self.log_lines.add)
        made.on_finished.append(kernel.run_finished)
        return made

    @cached_property
    def reads(self) -> RunReads:
        """Reads of runs and their steps."""
        from treadle.kernel.runs.reads import RunReads

        kernel = self._kernel
        return RunReads(kernel.store, kernel.value_store, namespace=kernel.settings.namespace, why_awaiting=kernel.why_awaiting)

    @cached_property
    def function_runs(self) -> FunctionRuns:
        """Operations on runs of functions."""
        from treadle.kernel.functions.operations import FunctionRuns

        kernel, limit = self._kernel, self._kernel.settings.payload_limit
        return FunctionRuns(kernel.store, kernel.committer, kernel.value_store, kernel.ids, self.functions, payload_limit=limit)

    @cached_property
    def runs(self) -> Runs:
        """Operations on runs: start, pause, cancel, retry."""
        from treadle.kernel.runs.service import Runs

        kernel, settings = self._kernel, self._kernel.settings
        return Runs(
            kernel.store,
            kernel.committer,
            self.advancer,
            self.flows,
            kernel.value_store,
            kernel.ids,
            self.function_runs,
            namespace=settings.namespace,
            current_trace_id=kernel.telemetry.trace_id,
            finishing=settings.finish_on_failure,
            deadlines=settings.run_deadlines,
        )

    @cached_property
    def step_reads(self) -> StepReads:
        """Reads of steps for people."""
        from treadle.kernel.runs.step_reads import StepReads

        return StepReads(self._kernel.store, self._kernel.value_store, self.reads)

    @cached_property
    def traces(self) -> TraceReads:
        """Everything that followed from one start."""
        from treadle.kernel.traces.reads import TraceReads

        kernel = self._kernel
        return TraceReads(kernel.store, kernel.value_store, self.step_reads, namespace=kernel.settings.namespace)

    @cached_property
    def redos(self) -> Redos:
        """Repeats parts of runs."""
        from treadle.kernel.runs.redo import Redos

        return Redos(self.runs, self.functions, self.flows)

    @cached_property
    def bulk(self) -> BulkRuns:
        """Operations on all runs that match a query."""
        from treadle.kernel.runs.bulk import BulkRuns

        return BulkRuns(self.runs, self.reads, lambda: self._kernel.search)
