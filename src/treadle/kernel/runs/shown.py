"""Runs and steps as the API shows them, made from stored ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from treadle.api.runs import Activity, RunLogLine, RunStarted, UsageRequest, UsageSums
from treadle.api.runs import Run as RunRecord
from treadle.api.steps import Step, StepFailure
from treadle.api.wire import record_of
from treadle.evaluator import StepRow
from treadle.kernel.functions.reads import FunctionStepRow
from treadle.kernel.queue.why import shown_server_state
from treadle.kernel.runs.display import ShownStep
from treadle.kernel.runs.flows import Flows, declared_returns, find_workflow, missing_handlers, needed_handlers
from treadle.kernel.runs.reads import RunReads
from treadle.kernel.runs.records import StartedRun
from treadle.kernel.search.service import Search
from treadle.kernel.store.ports import Store
from treadle.lang.nodes import Block
from treadle.lang.nodes import Step as ProgramStep
from treadle.lang.program import Program
from treadle.model.access import Access
from treadle.model.errors import RunNotFound, UnreadableValue
from treadle.model.names import DEFAULT_NAMESPACE, is_function
from treadle.model.runs import Run
from treadle.model.tags import decode_tags
from treadle.model.tasks import LogLine
from treadle.model.usage import Usage, total
from treadle.model.values import BlobRef, Json, decode

R = TypeVar("R", bound=RunRecord)
S = TypeVar("S", bound=Step)


def run_record(kind: type[R], run: Run, activity: Activity | None, took_for: int | None, **more: Any) -> R:
    """A record with the fields of a run, without its values, what it is doing or how long it took, and `more`."""
    return record_of(kind, run, error=decode(run.error), activity=activity, took_for=took_for, **more)


def usage_sums(rows: list[Usage]) -> UsageSums:
    """Sums over model requests."""
    return record_of(UsageSums, total(rows))


def usage_request(row: Usage, path: str | None) -> UsageRequest:
    """One model request."""
    return record_of(UsageRequest, row, path=path)


def run_line(number: int, line: LogLine, paths: dict[str, str]) -> RunLogLine:
    """A log line of a run."""
    return record_of(RunLogLine, line, details=line.said or None, number=number, path=paths.get(line.step_id or ""))


def step_record(
    kind: type[S], shown: ShownStep, program: Program | None, params: dict[str, Json], returns: dict[str, Json], **more: Any
) -> S:
    """A record with the fields of a step or block, and `more`; `program` is that of its run, None for a function."""
    row, error = shown.row, shown.row.error
    facet = None if program is None or row.facet is None or row.is_terminal else program.find_facet(row.facet)
    return record_of(
        kind,
        shown,
        row,
        state=str(shown.state),
        language_state=str(row.state),
        folds=folds(row, program),
        params=by_size(params),
        returns=by_size(returns),
        error=None if error is None else StepFailure(error.type, error.text, error.step_id, error.message),
        expects=None if facet is None or not facet.is_event else declared_returns(facet),
        **more,
    )


def by_size(values: dict[str, Json]) -> dict[str, Json]:
    """Values, with large ones replaced by `{"@size": characters}`."""
    return {name: {"@size": value.size} if isinstance(value, BlobRef) else value for name, value in values.items()}


class RunRecords:
    """Reads runs for display."""

    def __init__(
        self, store: Store, reads: RunReads, flows: Flows, search: Callable[[], Search], *, namespace: str = DEFAULT_NAMESPACE
    ) -> None:
        self._store = store
        self._reads = reads
        self._flows = flows
        self._search = search
        self._namespace = namespace

    async def find(self, run_id: str, access: Access) -> Run:
        """The run; raises `RunNotFound` if the caller may not see its list."""
        run = await self._reads.get_run(run_id)
        if not access.may_use(run.task_list):
            raise RunNotFound(run_id)
        return run

    async def started(self, started: StartedRun, access: Access) -> RunStarted:
        """The run, with the handlers that it needs and that no live worker has."""
        run = await self.find(started.id, access)  # an idempotency key may stand for a run of another list
        servers, now = (
            await self._store.servers.list_all(self._namespace),
            await self._store.now(),
        )
        live = [each for each in servers if shown_server_state(each, now) == "running" and run.task_list in each.task_lists]
        missing = await self.missing_handlers(run)
        return await self.shown(RunStarted, run, created=started.created, missing_handlers=missing, workers=len(live))

    async def shown(self, kind: type[R], run: Run, **more: Any) -> R:
        """A record of the run with its activity, and `more`."""
        reads = self._reads
        activity, took = await reads.activities([run]), await reads.times([run])
        tags = await self._search().list_tags([run.id])
        return run_record(kind, run, activity.get(run.id), took.get(run.id), tags=decode_tags(tags.get(run.id, {})), **more)

    async def listed(self, found: Sequence[Run]) -> list[RunRecord]:
        """Records of runs for a list."""
        reads = self._reads
        doing, took = await reads.activities(found), await reads.times(found)
        tags = await self._search().list_tags([run.id for run in found])
        return [
            run_record(RunRecord, run, doing.get(run.id), took.get(run.id), tags=decode_tags(tags.get(run.id, {}))) for run in found
        ]

    async def missing_handlers(self, run: Run) -> list[str]:
        """The handlers that the workflow may need and no live worker has; none if it is finished, a function or unreadable."""
        if run.finished or is_function(run.flow_id):
            return []
        try:
            program = await self._flows.program(run.flow_id)
        except UnreadableValue:
            return []
        needed = needed_handlers(program, find_workflow(program, run.workflow))
        servers, now = (
            await self._store.servers.list_all(self._namespace),
            await self._store.now(),
        )
        return missing_handlers(needed, (), servers, run.task_list, now)


def folds(row: StepRow, program: Program | None) -> bool:
    """Whether the row may have children; `program` is that of its run, None for a function."""
    if program is None or isinstance(row, FunctionStepRow):
        return False
    node = program.find_node(row.statement_id)
    if not row.is_step:
        return not (isinstance(node, Block) and node.script is not None)
    facet = None if row.facet is None else program.find_facet(row.facet)
    own = isinstance(node, ProgramStep) and (node.body is not None or node.catch is not None)
    return own or (facet is not None and bool(facet.blocks or facet.catch or any(mixin.alias for mixin in facet.mixins)))
