"""Kernel services for runs of workflows and functions, built on first use."""

from __future__ import annotations

from functools import cached_property, partial
from typing import TYPE_CHECKING

from treadle.evaluator import Limits
from treadle.kernel.functions.operations import FunctionRuns
from treadle.kernel.functions.service import Functions
from treadle.kernel.runs.advancer import Advancer
from treadle.kernel.runs.flows import Flows
from treadle.kernel.runs.reads import RunReads
from treadle.kernel.runs.service import Runs
from treadle.kernel.settler import Settler
from treadle.workers.log_writer import LazyLogWriter

if TYPE_CHECKING:
    from treadle.kernel.runs.bulk import BulkRuns
    from treadle.kernel.runs.redo import Redos
    from treadle.kernel.runs.step_reads import StepReads
    from treadle.kernel.traces.reads import TraceReads
    from treadle.wiring.kernel import Kernel


class RunServices:
    """Flows, runs, durable functions and the settler."""

    def __init__(self, kernel: Kernel) -> None:
        namespace, payload_limit = kernel.settings.namespace, kernel.settings.payload_limit
        store, committer, value_store, ids = kernel.store, kernel.committer, kernel.value_store, kernel.ids
        external_jobs, current_trace_id = kernel.external_jobs, kernel.telemetry.trace_id
        self.flows = Flows(store, committer, value_store, namespace=namespace)
        self.advancer = Advancer(
            store,
            committer,
            self.flows,
            value_store,
            kernel.clock.now,
            kernel.emit,
            Limits(
                depth=kernel.settings.run_depth,
                total_rows=kernel.settings.run_rows,
                slice_bytes=kernel.settings.advance_bytes,
            ),
            cancel_rows=kernel.cancel_rows,
            cancel_tasks=external_jobs.tasks_for_run,
            withdraw_rows=partial(kernel.approvals.rows_for_run, why="its run will fail"),
        )
        self.reads = RunReads(store, value_store, namespace=namespace, why_awaiting=kernel.why_awaiting)
        self.functions = Functions(
            store,
            committer,
            value_store,
            ids,
            kernel.clock,
            kernel.function_registry.newest,
            kernel.function_registry.cleanup_for,
            namespace=namespace,
            payload_limit=payload_limit,
            cancel_rows=kernel.cancel_rows,
            cancel_tasks=external_jobs.tasks_for_run,
            current_trace_id=current_trace_id,
            deadlines=kernel.settings.run_deadlines,
        )
        self.function_runs = FunctionRuns(store, committer, value_store, ids, self.functions, payload_limit=payload_limit)
        self.runs = Runs(
            store,
            committer,
            self.advancer,
            self.flows,
            value_store,
            ids,
            self.function_runs,
            namespace=namespace,
            current_trace_id=current_trace_id,
            finishing=kernel.settings.finish_on_failure,
            deadlines=kernel.settings.run_deadlines,
        )
        self.settler = Settler(
            committer,
            value_store,
            self.advancer,
            self.functions,
            kernel.approvals,
            external_jobs,
            {kind: extension.settle for extension in kernel.extensions for kind in extension.kinds},
        )
        self.log_lines = LazyLogWriter(store, kernel.emit)
        """Writes the log lines of flows, for all workers of the engine."""
        self.advancer.on_line.append(self.log_lines.add)
        for on_finished in (self.advancer.on_finished, self.functions.on_finished):
            on_finished.append(kernel.run_finished)
        self._kernel = kernel

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
