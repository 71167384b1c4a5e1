"""Reads of the steps of a run for interfaces: pages, children, single steps, and timelines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from treadle.api.steps import TimeSpan
from treadle.evaluator import RunRef, StepRow
from treadle.evaluator.states import StepKind
from treadle.evaluator.waits import task_id_of
from treadle.kernel.functions.reads import FunctionStepRow
from treadle.kernel.functions.steps import HIDDEN, is_function
from treadle.kernel.runs.display import RunWork, ShownStep, needs_moves, spans
from treadle.kernel.runs.reads import RunReads, in_order
from treadle.kernel.runs.step_codec import show_step, statement_of
from treadle.kernel.store.lookups import PAGE_LIMIT, check_limit
from treadle.kernel.store.ports import Store
from treadle.kernel.store.value_store import ValueStore
from treadle.lang.nodes import Block
from treadle.lang.nodes import Step as ProgramStep
from treadle.lang.program import Program
from treadle.model.errors import InvalidInput, StepNotFound
from treadle.model.ids import parse_id
from treadle.model.runs import Run, Step
from treadle.model.states import StepState
from treadle.model.tasks import Task
from treadle.model.values import BlobRef, Json, arguments_text

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

    def count(self, step: Step, state: StepState) -> None:
        if step.kind == StepKind.ITEM:
            self.items[str(state)] += 1
            return
        self.step_id = None if self.states else step.id
        self.states[str(state)] += 1


@dataclass(frozen=True, slots=True)
class PageOfSteps:
    """A page of steps and the cursor of the next page; None on the last one."""

    steps: list[ShownStep]
    next_after: str | None


def is_shown(row: StepRow) -> bool:
    """Whether interfaces show the row: every step, and a block only if it has a script or an error of its own."""
    return row.is_step or row.task_id is not None or (row.error is not None and row.error.step_id == row.id)


def task_of(row: StepRow) -> str | None:
    """The id of the handler's task, past or present; the task itself may be pruned."""
    if row.task_id is not None or isinstance(row, FunctionStepRow) or row.facet is None:
        return row.task_id
    return task_id_of(row)


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


class StepReads:
    """Reads of one namespace; changes nothing."""

    def __init__(self, store: Store, value_store: ValueStore, runs: RunReads) -> None:
        self._store = store
        self._value_store = value_store
        self._runs = runs

    async def page(
        self,
        run: Run,
        *,
        below: str | None = None,
        states: Sequence[str] = (),
        blocks: bool = True,
        after: str | None = None,
        limit: int = 100,
        in_program_order: bool = True,
    ) -> PageOfSteps:
        """Steps and blocks of the run as a tree, in program order.

        `below` selects the children of a step, or of the run itself (the top level). A page in program order costs as much as
        the run has steps; one in storage order costs only itself and may be shorter than `limit` before the end.
        """
        check_limit(limit)
        known = tuple(state.value for state in StepState)
        if unknown := [state for state in states if state not in known]:
            raise InvalidInput(f"Unknown state {unknown[0]!r}; states of steps are {', '.join(known)}.")
        cursor = None if after is None else parse_id(after, "cursor")
        work = await self._runs.work_of(run)
        if below is None and not in_program_order:
            stored = await self._store.runs.list_steps(run.id, cursor, limit)
            shown, last = await self._runs.shown(work, stored), len(stored) < limit
            if last and work.in_progress:
                recorded = await self._runs.shown(work, await self._store.runs.load_steps(run.id, rows=list(work.in_progress)))
                shown += self._runs.unrecorded(work, recorded)
            kept = [each for each in shown if _fits(each, states, blocks)]
            return PageOfSteps(await self._finished(work, kept), None if last else stored[-1].id)
        found = await (self._all(run) if below is None else self._below(run, work, below))
        page = _page_of(found, cursor, states, blocks, limit)
        return PageOfSteps(await self._finished(work, page.steps), page.next_after)

    async def _finished(self, work: RunWork, steps: list[ShownStep]) -> list[ShownStep]:
        """The steps with the times of their finished tasks."""
        wanted = {task_id: each.row.id for each in steps if each.ended_at is not None and (task_id := task_of(each.row))}
        tasks = {wanted[task.id]: task for task in (await self._store.tasks.find_finished(list(wanted)) if wanted else [])}
        return [work.finish(each, tasks[each.row.id]) if each.row.id in tasks else each for each in steps]

    async def _all(self, run: Run) -> list[ShownStep]:
        if run.steps > SORTED_LIMIT:
            raise InvalidInput(
                f"The run {run.id} has {run.steps} steps, too many to sort for a page (limit {SORTED_LIMIT}): ask for "
                "the children of one of them, or for pages in storage order."
            )
        return await self._runs.list_steps(run.id, SORTED_LIMIT)

    async def _below(self, run: Run, work: RunWork, below: str) -> list[ShownStep]:
        parent = parse_id(below, "step id")
        if parent == run.id:
            if is_function(run.flow_id):
                return await self._all(run)
            root_id = RunRef(id=run.id, workflow=run.workflow).root_id
            return await self._runs.shown(work, await self._store.runs.load_steps(run.id, rows=[root_id]))
        return list(in_order(await self._runs.shown(work, await self._store.runs.load_steps(run.id, children_of=[parent]))))

    async def get(self, run: Run, step: str) -> ShownStep:
        """A step by its id or its path, or `StepNotFound`."""
        work = await self._runs.work_of(run)
        if (found := next((each for each in work.show_unrecorded() if step in (each.row.id, each.row.path)), None)) is not None:
            row = found.row
        else:
            row = await self._runs.get_step(run.id, step)
        stored = await self._runs.shown(work, await self._store.runs.load_steps(run.id, rows=[row.id]))
        if not stored and found is not None:
            return found
        if not stored:
            raise StepNotFound(step)
        return (await self._finished(work, stored))[0]

    async def find(self, step_id: str) -> StepRow:
        """The step of that id in any run and namespace, or `StepNotFound`."""
        step = await self._store.runs.find_step(parse_id(step_id, "step id"))
        if step is None or step.kind in HIDDEN:
            raise StepNotFound(step_id)
        return show_step(step, self._value_store)

    async def opened(self, values: dict[str, Json]) -> dict[str, Json]:
        """The attributes with separately stored values filled in."""
        refs = [value.digest for value in values.values() if isinstance(value, BlobRef)]
        found = await self._value_store.load(refs) if refs else {}
        return {name: found[value.digest] if isinstance(value, BlobRef) else value for name, value in values.items()}

    async def timeline(self, page: PageOfSteps) -> list[tuple[ShownStep, list[TimeSpan]]]:
        """The time spans of these steps' tasks, by step."""
        wanted = [task_id for shown in page.steps if (task_id := task_of(shown.row)) is not None]
        tasks = {task.id: task for task in (await self._store.tasks.find_many(wanted) if wanted else [])}
        return [(shown, await self._spans(tasks.get(task_of(shown.row) or ""))) for shown in page.steps]

    async def _spans(self, task: Task | None) -> list[TimeSpan]:
        if task is None:
            return []
        return spans(task, await self._store.log.list_moves(task.id) if needs_moves(task) else ())

    async def count_by_statement(self, run: Run) -> dict[str, NodeCounts]:
        """The rows of each program node; empty for a run over `SORTED_LIMIT`."""
        found: dict[str, NodeCounts] = {}
        work = await self._runs.work_of(run)
        after: str | None = None
        while run.steps <= SORTED_LIMIT and (page := await self._store.runs.list_steps(run.id, after, PAGE_LIMIT)):
            rows = {step.id: statement_of(step, self._value_store) for step in page}
            known = await self._runs.work_at(work, {step_id: status for step_id, (_, status) in rows.items()})
            for step in page:
                statement_id, status = rows[step.id]
                found.setdefault(statement_id, NodeCounts()).count(step, known.state_of(step.id, status))
            after = page[-1].id
        single = {node.step_id: node for node in found.values() if node.step_id is not None}
        for step in await self._store.runs.load_steps(run.id, rows=list(single)[:PAGE_LIMIT]) if single else ():
            row = show_step(step, self._value_store)
            single[step.id].about, single[step.id].total = arguments_text(row.params), row.total
        return found


def _fits(shown: ShownStep, states: Sequence[str], blocks: bool) -> bool:
    return (blocks or is_shown(shown.row)) and (not states or shown.state in states)


def _page_of(found: Sequence[ShownStep], cursor: str | None, states: Sequence[str], blocks: bool, limit: int) -> PageOfSteps:
    """The page after the cursor, from sorted steps."""
    start = 0
    if cursor is not None:
        start = next((number for number, shown in enumerate(found, 1) if shown.row.id == cursor), -1)
        if start < 0:
            raise StepNotFound(cursor)
    kept = [shown for shown in found[start:] if _fits(shown, states, blocks)]
    return PageOfSteps(kept[:limit], kept[limit - 1].row.id if len(kept) > limit else None)
