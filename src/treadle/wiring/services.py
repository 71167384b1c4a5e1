"""Kernel services that are built on first use: runs of workflows and functions, and triggers."""

from __future__ import annotations

import asyncio
from functools import cached_property, partial
from typing import TYPE_CHECKING

from treadle.evaluator import Limits
from treadle.kernel.alerts.evaluate import AlertEvaluator
from treadle.kernel.alerts.reads import AlertReads
from treadle.kernel.alerts.service import Alerts
from treadle.kernel.declarations.service import Declarations
from treadle.kernel.functions.operations import FunctionRuns
from treadle.kernel.functions.service import Functions
from treadle.kernel.runs.advancer import Advancer
from treadle.kernel.runs.flows import Flows
from treadle.kernel.runs.reads import RunReads
from treadle.kernel.runs.service import Runs
from treadle.kernel.schedules.fire import Firer
from treadle.kernel.schedules.service import Schedules
from treadle.kernel.settler import Settler
from treadle.kernel.status import StatusReads
from treadle.kernel.triggers.target import Starters
from treadle.kernel.watchers.decide import Scan
from treadle.kernel.watchers.scan import SourceReader, WatcherScanner
from treadle.kernel.watchers.service import Watchers
from treadle.model.watchers import Source
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


class TriggerServices:
    """Schedules, watchers, alerts and declarations."""

    def __init__(self, kernel: Kernel) -> None:
        namespace = kernel.settings.namespace
        store, committer, ids = kernel.store, kernel.committer, kernel.ids
        self._kernel = kernel
        self.starters = Starters(store, kernel.queue, lambda: kernel.run_services.runs, lambda: kernel.run_services.functions)
        self.schedules = Schedules(store, committer, ids, self.starters, namespace=namespace)
        self.watchers = Watchers(store, committer, ids, self.starters, namespace=namespace)
        self.watchers.survey = _survey
        self.firer = Firer(store, committer, self.schedules, self.starters)
        self.declarations = Declarations(store, committer, self.schedules, kernel.emit, namespace=namespace)
        self.alerts = Alerts(store, committer, ids, self.starters, namespace=namespace)
        self.alerts.seal = kernel.value_store.seal
        self.status = StatusReads(store, kernel.clock, self.schedules, self.watchers, namespace=namespace)
        reads = AlertReads(store, self.status.read, namespace=namespace)
        self.alert_evaluator = AlertEvaluator(store, committer, self.alerts, reads, ids, namespace=namespace)

    def scanner(self, source_reader: SourceReader) -> WatcherScanner:
        """Return the service that scans for watchers with the given file and network access."""
        kernel = self._kernel
        return WatcherScanner(kernel.store, kernel.committer, self.watchers, self.starters, kernel.ids, kernel.emit, source_reader)


async def _survey(source: Source) -> Scan:
    """List the files of a source on this machine, in a thread."""
    from treadle.workers.scanner import scan

    return await asyncio.to_thread(scan, source)
