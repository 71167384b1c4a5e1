"""What runs of workflows need beside the queue, made together from an engine's parts."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from treadle.kernel.advancer import Advancer
from treadle.kernel.flows import Flows
from treadle.kernel.function_runs import FunctionRuns
from treadle.kernel.functions import Functions
from treadle.kernel.run_bulk import BulkRuns
from treadle.kernel.run_reads import RunReads
from treadle.kernel.runs import Runs
from treadle.kernel.settler import Settler
from treadle.kernel.step_reads import StepReads
from treadle.wiring.services import closing_of_run
from treadle.workers.lines import SoonWriter

if TYPE_CHECKING:
    from treadle.wiring.engine import Engine


class RunKernel:
    """Flows, the advancer, the runs service and the settler of one engine."""

    def __init__(self, engine: Engine) -> None:
        namespace = engine.settings.namespace
        store, committer, vault = engine.store, engine.committer, engine.vault
        self.flows = Flows(store, committer, vault, namespace=namespace)
        self.advancer = Advancer(store, committer, self.flows, vault, engine.clock.now, engine.emit)
        self.reads = RunReads(store, vault, namespace=namespace)
        self.reads.why_awaiting = engine.reads.why_awaiting
        self.step_reads = StepReads(store, vault, self.reads)
        self.functions = Functions(
            store,
            committer,
            vault,
            engine.ids,
            engine.function_registry.newest,
            namespace=namespace,
            payload_limit=engine.settings.payload_limit,
        )
        limit = engine.settings.payload_limit
        self.function_runs = FunctionRuns(store, committer, vault, engine.ids, self.functions, payload_limit=limit)
        self.runs = Runs(store, committer, self.advancer, self.flows, vault, engine.ids, self.function_runs, namespace=namespace)
        self.bulk = BulkRuns(self.runs, self.reads)
        self.runs.closing = self.functions.closing = partial(closing_of_run, engine)
        self.runs.closing_tasks = self.functions.closing_tasks = engine.externals.tasks_for_run
        self.runs.current_trace_id = self.functions.current_trace_id = engine.telemetry.trace_id
        self.settler = Settler(committer, vault, self.advancer, self.functions, engine.approvals, engine.externals)
        self.lines = SoonWriter(store, engine.emit)
        """What flows log: written once for the whole engine, however many workers it has."""
        self.advancer.on_line.append(self.lines.add)
