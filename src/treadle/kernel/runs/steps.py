"""Steps of runs: pages, children, single steps and timelines; and the operations that the API declares on them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from treadle.api.runs import RunLogLine
from treadle.api.steps import (
    Order,
    Step,
    StepCompletion,
    StepDetail,
    StepFailure,
    StepLocation,
    StepPage,
    StepsApi,
    StepTime,
    Timeline,
    TimeSpan,
)
from treadle.api.tasks import TaskDetail
from treadle.api.wire import Instant, record_of
from treadle.evaluator import RunRef, StepRow
from treadle.evaluator.draft import task_id_of
from treadle.evaluator.states import StepKind
from treadle.kernel.core import Core, Service
from treadle.kernel.functions.reads import FunctionStepRow
from treadle.kernel.functions.service import Functions
from treadle.kernel.functions.steps import HIDDEN
from treadle.kernel.runs.decide import show_step, statement_of
from treadle.kernel.runs.display import RunWork, ShownStep, needs_transitions, spans
from treadle.kernel.runs.flows import Flows, declared_returns
from treadle.kernel.runs.reads import RunReads, in_order
from treadle.kernel.runs.service import Runs
from treadle.kernel.store.lookups import PAGE_LIMIT, check_limit
from treadle.kernel.tasks.records import TaskRecords
from treadle.lang.nodes import Block
from treadle.lang.nodes import Step as ProgramStep
from treadle.lang.program import Program
from treadle.model.access import OPEN, Access
from treadle.model.errors import InvalidInput, RunNotFound, TaskNotFound, UnreadableValue, not_found
from treadle.model.ids import parse_id
from treadle.model.names import is_function
from treadle.model.runs import Run
from treadle.model.runs import Step as StoredStep
from treadle.model.states import StepState
from treadle.model.tasks import LogLine, Task
from treadle.model.values import BlobRef, Json, arguments_text

S = TypeVar("S", bound=Step)

SORTED_LIMIT = 20_000
"""Limit on the steps of a run that are sorted for a page; beyond it, ask for children of a step or for storage order."""


@dataclass(slots=True)
class NodeCounts:
    """The rows of one program node in a run: states of steps and blocks, and of the items of a foreach."""

    states: Counter[str] = field(default_factory=Counter)
    items: Counter[str] = field(default_factory=Counter)
    step_id: str | None = None
    """The only step or block; None if there are several."""
    about: str = ""
    """Its arguments."""
    total: int | None = None
    """For a foreach with one row: all of its items, including those that are not created yet."""

    def count(self, step: StoredStep, state: StepState) -> None:
        if step.kind == StepKind.ITEM:
            self.items[str(state)] += 1
            return
        self.step_id = None if self.states else step.id
        self.states[str(state)] += 1


def is_shown(row: StepRow) -> bool:
    """Whether interfaces show the row: every step, and a block only if it has a script or an error of its own."""
    return row.is_step or row.task_id is not None or (row.error is not None and row.error.step_id == row.id)


def task_of(row: StepRow) -> str | None:
    """The id of the handler's task, past or present; the task itself may be pruned."""
    if row.task_id is not None or isinstance(row, FunctionStepRow) or row.facet is None:
        return row.task_id
    return task_id_of(row)


class StepReads(RunReads):
    """Reads of the runs and steps of one namespace; changes nothing."""

    async def page_steps(
        self,
        run: Run,
        *,
        below: str | None = None,
        states: Sequence[str] = (),
        blocks: bool = True,
        after: str | None = None,
        limit: int = 100,
        in_program_order: bool = True,
    ) -> tuple[list[ShownStep], str | None]:
        """Steps and blocks of the run as a tree, in program order, and the cursor of the next page; None on the last one.

        `below` selects the children of a step, or of the run itself (the top level). A page in program order costs as much as
        the run has steps; one in storage order costs only itself and may be shorter than `limit` before the end.
        """
        check_limit(limit)
        state_names = tuple(state.value for state in StepState)
        if unknown := [state for state in states if state not in state_names]:
            raise InvalidInput(f"Unknown state {unknown[0]!r}; states of steps are {', '.join(state_names)}.")
        cursor = None if after is None else parse_id(after, "cursor")
        work = await self.work_of(run)
        if below is None and not in_program_order:
            stored = await self._store.runs.list_steps(run.id, cursor, limit)
            page, last = await self.shown(work, stored), len(stored) < limit
            if last and work.in_progress:
                recorded = await self.shown(work, await self._store.runs.load_steps(run.id, rows=list(work.in_progress)))
                page += self.unrecorded(work, recorded)
            fitting = [step for step in page if _fits(step, states, blocks)]
            return await self._finished(work, fitting), None if last else stored[-1].id
        ordered = await (self._all(run) if below is None else self._below(run, work, below))
        steps, next_after = _page_of(ordered, cursor, states, blocks, limit)
        return await self._finished(work, steps), next_after

    async def _finished(self, work: RunWork, steps: list[ShownStep]) -> list[ShownStep]:
        """The steps with the times of their finished tasks."""
        wanted = {task_id: step.row.id for step in steps if step.ended_at is not None and (task_id := task_of(step.row))}
        tasks = {wanted[task.id]: task for task in (await self._store.tasks.find_many(list(wanted), ended=True) if wanted else [])}
        return [work.finish(step, tasks[step.row.id]) if step.row.id in tasks else step for step in steps]

    async def _all(self, run: Run) -> list[ShownStep]:
        if run.steps > SORTED_LIMIT:
            raise InvalidInput(
                f"The run {run.id} has {run.steps} steps, too many to sort for a page (limit {SORTED_LIMIT}): ask for "
                "the children of one of them, or for pages in storage order."
            )
        return await self.list_steps(run.id, SORTED_LIMIT)

    async def _below(self, run: Run, work: RunWork, below: str) -> list[ShownStep]:
        parent = parse_id(below, "step id")
        if parent == run.id:
            if is_function(run.flow_id):
                return await self._all(run)
            root_id = RunRef(id=run.id, workflow=run.workflow).root_id
            return await self.shown(work, await self._store.runs.load_steps(run.id, rows=[root_id]))
        return list(in_order(await self.shown(work, await self._store.runs.load_steps(run.id, children_of=[parent]))))

    async def show_step(self, run: Run, step: str) -> ShownStep:
        """A step by its id or its path, or `NotFound`."""
        work = await self.work_of(run)
        unrecorded = next(
            (candidate for candidate in work.show_unrecorded() if step in (candidate.row.id, candidate.row.path)), None
        )
        if unrecorded is not None:
            row = unrecorded.row
        else:
            row = await self.get_step(run.id, step)
        stored = await self.shown(work, await self._store.runs.load_steps(run.id, rows=[row.id]))
        if not stored and unrecorded is not None:
            return unrecorded
        if not stored:
            raise not_found("step", step)
        return (await self._finished(work, stored))[0]

    async def find_step(self, step_id: str) -> StepRow:
        """The step of that id in any run and namespace, or `NotFound`."""
        step = await self._store.runs.find_step(parse_id(step_id, "step id"))
        if step is None or step.kind in HIDDEN:
            raise not_found("step", step_id)
        return show_step(step, self._value_store)

    async def open_values(self, values: dict[str, Json]) -> dict[str, Json]:
        """The attributes with separately stored values filled in."""
        refs = [value.digest for value in values.values() if isinstance(value, BlobRef)]
        large_values = await self._value_store.load(refs) if refs else {}
        return {name: large_values[value.digest] if isinstance(value, BlobRef) else value for name, value in values.items()}

    async def timeline(self, steps: Sequence[ShownStep]) -> list[tuple[ShownStep, list[TimeSpan]]]:
        """The time spans of these steps' tasks, by step."""
        wanted = [task_id for step in steps if (task_id := task_of(step.row)) is not None]
        tasks = {task.id: task for task in (await self._store.tasks.find_many(wanted) if wanted else [])}
        return [(step, await self._spans(tasks.get(task_of(step.row) or ""))) for step in steps]

    async def _spans(self, task: Task | None) -> list[TimeSpan]:
        if task is None:
            return []
        return spans(task, await self._store.log.list_transitions(task.id) if needs_transitions(task) else ())

    async def count_by_statement(self, run: Run) -> dict[str, NodeCounts]:
        """The rows of each program node; empty for a run over `SORTED_LIMIT`."""
        nodes: dict[str, NodeCounts] = {}
        work = await self.work_of(run)
        after: str | None = None
        while run.steps <= SORTED_LIMIT and (page := await self._store.runs.list_steps(run.id, after, PAGE_LIMIT)):
            after = page[-1].id
            page = [step for step in page if step.kind not in HIDDEN]
            rows = {step.id: statement_of(step, self._value_store) for step in page}
            live_work = await self.work_at(work, {step_id: status for step_id, (_, status) in rows.items()})
            for step in page:
                statement_id, status = rows[step.id]
                nodes.setdefault(statement_id, NodeCounts()).count(step, live_work.state_of(step.id, status))
        single = {node.step_id: node for node in nodes.values() if node.step_id is not None}
        for step in await self._store.runs.load_steps(run.id, rows=list(single)[:PAGE_LIMIT]) if single else ():
            row = show_step(step, self._value_store)
            single[step.id].about, single[step.id].total = arguments_text(row.params), row.total
        return nodes


def run_line(number: int, line: LogLine, paths: dict[str, str]) -> RunLogLine:
    """A log line of a run."""
    return record_of(RunLogLine, line, details=line.public_details or None, number=number, path=paths.get(line.step_id or ""))


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


def _fits(step: ShownStep, states: Sequence[str], blocks: bool) -> bool:
    return (blocks or is_shown(step.row)) and (not states or step.state in states)


def _page_of(
    steps: Sequence[ShownStep], cursor: str | None, states: Sequence[str], blocks: bool, limit: int
) -> tuple[list[ShownStep], str | None]:
    """The page after the cursor, from sorted steps."""
    start = 0
    if cursor is not None:
        start = next((number for number, step in enumerate(steps, 1) if step.row.id == cursor), -1)
        if start < 0:
            raise not_found("step", cursor)
    fitting = [step for step in steps[start:] if _fits(step, states, blocks)]
    return fitting[:limit], fitting[limit - 1].row.id if len(fitting) > limit else None


_LINES = 100
_LOOKED_AT = 1000


class StepOperations(Service, StepsApi):
    """The steps of the runs of one namespace."""

    def __init__(
        self,
        core: Core,
        reads: StepReads,
        tasks: TaskRecords,
        runs: Runs,
        functions: Functions,
        flows: Flows,
    ) -> None:
        super().__init__(core)
        self._reads = reads
        self._tasks = tasks
        self._runs = runs
        self._functions = functions
        self._flows = flows

    async def find(self, step_id: str, *, access: Access = OPEN) -> StepLocation:
        row = await self._reads.find_step(step_id)
        try:
            await self._reads.get_visible(row.run_id, access)
        except RunNotFound:
            raise not_found("step", step_id) from None
        return StepLocation(row.run_id, row.id, row.path)

    async def list(
        self,
        run_id: str,
        *,
        below: str | None = None,
        state: Sequence[str] = (),
        blocks: bool = True,
        values: bool = True,
        order: Order = "program",
        limit: int = 100,
        after: str | None = None,
        access: Access = OPEN,
    ) -> StepPage:
        run = await self._reads.get_visible(run_id, access)
        steps, next_after = await self._reads.page_steps(
            run,
            below=below,
            states=tuple(state),
            blocks=blocks,
            after=after,
            limit=limit,
            in_program_order=order == "program",
        )
        program = await self._program(run)
        return StepPage(run.id, [_step(step, program, values=values) for step in steps], next_after)

    async def _program(self, run: Run) -> Program | None:
        """The program of a workflow's run; None if it cannot be read."""
        try:
            return None if is_function(run.flow_id) else await self._flows.program(run.flow_id)
        except UnreadableValue:
            return None

    async def timeline(
        self,
        run_id: str,
        *,
        below: str | None = None,
        blocks: bool = False,
        limit: int = 100,
        after: str | None = None,
        access: Access = OPEN,
    ) -> Timeline:
        run = await self._reads.get_visible(run_id, access)
        steps, next_after = await self._reads.page_steps(run, below=below, blocks=blocks, after=after, limit=limit)
        program = await self._program(run)
        times = [
            record_of(
                StepTime,
                _step(step, program),
                began_at=Instant.of(step.began_at) if not spans else min(Instant.of(step.began_at), spans[0].began_at),
                spans=spans,
            )
            for step, spans in await self._reads.timeline(steps)
        ]
        return Timeline(run.id, Instant.of(await self._store.now()), times, next_after)

    async def get(self, run_id: str, step: str, *, whole: bool = False, access: Access = OPEN) -> StepDetail:
        run = await self._reads.get_visible(run_id, access)
        shown_step = await self._reads.show_step(run, step)
        row, task_id = shown_step.row, task_of(shown_step.row)
        params, returns, loop = row.params, row.returns, row.loop
        if whole:
            params, returns, loop = [await self._reads.open_values(values) for values in (params, returns, loop)]
        lines = [
            (number, line)
            for number, line in await self._reads.page_lines(run, _LOOKED_AT)
            if line.step_id == row.id or (task_id is not None and line.task_id == task_id)
        ]
        task = None if task_id is None else await self._task(task_id)
        raised = row.traceback if isinstance(row, FunctionStepRow) else None
        if task is not None:
            raised = raised or (task.error or {}).get("traceback")
            if isinstance(row, FunctionStepRow) and isinstance(task.payload, dict):
                params = params or task.payload
        return step_record(
            StepDetail,
            shown_step,
            await self._program(run),
            params,
            returns,
            loop=by_size(loop),
            task=task,
            lines=[run_line(number, line, {row.id: row.path}) for number, line in lines[-_LINES:]],
            traceback=raised,
        )

    async def _task(self, task_id: str) -> TaskDetail | None:
        """The step's task; None if it was deleted, belongs to a child run, or its id is damaged."""
        try:
            return await self._tasks.detail(await self._tasks.find(task_id, OPEN))
        except (TaskNotFound, InvalidInput):
            return None

    async def continue_step(
        self, run_id: str, step: str, result: dict[str, Json] | None = None, *, actor: str = "operator", access: Access = OPEN
    ) -> StepCompletion:
        run = await self._reads.get_visible(run_id, access)
        row = await self._reads.get_step(run, step)
        done = await self._runs.continue_step(run.id, row.id, result, actor=actor)
        return StepCompletion(run.id, row.id, row.path, done)

    async def fail_step(
        self, run_id: str, step: str, message: str, *, code: str = "failed", actor: str = "operator", access: Access = OPEN
    ) -> StepCompletion:
        run = await self._reads.get_visible(run_id, access)
        row = await self._reads.get_step(run, step)
        done = await self._runs.fail_step(run.id, row.id, message, code=code, actor=actor)
        return StepCompletion(run.id, row.id, row.path, done)


def _step(shown_step: ShownStep, program: Program | None, *, values: bool = True) -> Step:
    return step_record(Step, shown_step, program, shown_step.row.params if values else {}, shown_step.row.returns if values else {})
