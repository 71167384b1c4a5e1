"""What runs of workflows need beside the queue, made together from an engine's parts."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from treadle.kernel.functions.operations import FunctionRuns
from treadle.kernel.functions.service import Functions
from treadle.kernel.runs.advancer import Advancer
from treadle.kernel.runs.bulk import BulkRuns
from treadle.kernel.runs.flows import Flows
from treadle.kernel.runs.reads import RunReads
from treadle.kernel.runs.service import Runs
from treadle.kernel.runs.step_reads import StepReads
from treadle.kernel.settler import Settler
from treadle.wiring.services import closing_of_run
from treadle.workers.log_writer import LogWriter

if TYPE_CHECKING:
    from treadle.wiring.engine import Engine


class RunKernel:
    """Flows, the advancer, the runs service and the settler of one engine."""

    def __init__(self, engine: Engine) -> None:
        namespace = engine.settings.namespace
        store, committer, value_store = engine.store, engine.committer, engine.value_store
        self.flows = Flows(store, committer, value_store, namespace=namespace)
        self.advancer = Advancer(store, committer, self.flows, value_store, engine.clock.now, engine.emit)
        self.reads = RunReads(store, value_store, namespace=namespace)
        self.reads.why_awaiting = engine.reads.why_awaiting
        self.step_reads = StepReads(store, value_store, self.reads)
        self.functions = Functions(
            store,
            committer,
            value_store,
            engine.ids,
            engine.function_registry.newest,
            namespace=namespace,
            payload_limit=engine.settings.payload_limit,
        )
        limit = engine.settings.payload_limit
        self.function_runs = FunctionRuns(store, committer, value_store, engine.ids, self.functions, payload_limit=limit)
        self.runs = Runs(
            store, committer, self.advancer, self.flows, value_store, engine.ids, self.function_runs, namespace=namespace
        )
        self.bulk = BulkRuns(self.runs, self.reads)
        self.runs.closing = self.functions.closing = partial(closing_of_run, engine)
        self.runs.closing_tasks = self.functions.closing_tasks = engine.external_jobs.tasks_for_run
        self.runs.current_trace_id = self.functions.current_trace_id = engine.telemetry.trace_id
        self.settler = Settler(committer, value_store, self.advancer, self.functions, engine.approvals, engine.external_jobs)
        self.lines = LogWriter(store, engine.emit)
        """What flows log: written once for the whole engine, however many workers it has."""
        self.advancer.on_line.append(self.lines.add)
