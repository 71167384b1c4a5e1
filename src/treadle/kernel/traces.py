"""The read of a trace: the trees of work that belong to one start, in the order in which they follow from each other.

A tree is everything with one root id. Trees with the same trace id, which callers pass on, are one trace. Every read uses an
index, and the number of reads does not depend on the size of the trace, except for functions, whose steps are read run by run.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from msgspec.structs import replace

from treadle.api.traces import Trace, TraceEntry, TraceOrigin
from treadle.api.wire import Instant
from treadle.kernel.core import Core, Service
from treadle.kernel.runs.display import needs_transitions, spans
from treadle.kernel.runs.steps import StepReads, task_of
from treadle.kernel.store.lookups import check_limit, find_by_name_or_id
from treadle.kernel.store.queries import TreeTask
from treadle.model.errors import InvalidInput, NotFound, TreadleError, not_found
from treadle.model.ids import parse_id
from treadle.model.names import ADVANCE, FUNCTION, is_function
from treadle.model.records import Record
from treadle.model.runs import Run
from treadle.model.states import APPROVAL, EXTERNAL, FINAL_TASK_STATES
from treadle.model.tasks import Task, Transition
from treadle.model.values import arguments_text, decode, decode_error, decode_object

T = TypeVar("T")
K = TypeVar("K")
R = TypeVar("R", Run, TreeTask)

ROOTS, RUNS, TASKS, RECORDS = 200, 2000, 20_000, 2000
"""Limits on the trees, runs, tasks and records of a trace that are read."""

FOLD = 25
"""More tasks, or child runs, of one name in a run than this are shown as one entry."""

FUNCTIONS, STEPS = 50, 200
"""Limits on the functions whose steps are read, and on the steps of each."""

_ENTITIES = {APPROVAL.entity: "approval", EXTERNAL.entity: "external_job"}
_TICK = re.compile(r":\d{4}-\d\d-\d\dT.*$")
"""The tick in the trace id of work that a schedule started."""
_SHARED = "watcher:"
"""The trace id of all work that one watcher started, which is not one trace."""


@dataclass(slots=True)
class _Node:
    """An entry with those that follow from it."""

    entry: TraceEntry
    below: list[_Node] = field(default_factory=list)

    def flat(self, depth: int = 0) -> Iterator[TraceEntry]:
        yield replace(self.entry, depth=depth)
        for node in sorted(self.below, key=_order):
            yield from node.flat(depth + 1)


def _order(node: _Node) -> tuple[Any, str]:
    return node.entry.created_at, node.entry.id


class TraceReads(Service):
    """Traces of one namespace."""

    def __init__(self, core: Core, steps: StepReads) -> None:
        super().__init__(core)
        self._steps = steps

    async def get(self, any_id: str, *, group: str | None = None, limit: int = 200, after: str | None = None) -> Trace:
        """Return a page of the trace that any id in it, or its trace id, names; raises `NotFound`."""
        check_limit(limit)
        roots, trace_id = await self._find_roots(any_id)
        runs, tasks, records = await self._store.traces.find_trees(roots, RUNS, TASKS, RECORDS)
        if not runs and not tasks:
            raise not_found("trace", any_id)
        now = await self._store.now()
        nodes = _Tree(runs, tasks, records, group).nodes()
        entries = [entry for node in sorted(nodes, key=_order) for entry in node.flat()]
        first = _first(runs, tasks)
        page = _page(entries, after, limit)
        executing = {task.run_id: task.id for task in tasks if task.kind == FUNCTION and task.run_id is not None}
        ends = [*(run.finished_at for run in runs), *(task.finished_at for task in tasks)]
        return Trace(
            id=first.id,
            trace_id=trace_id,
            name=_name(first),
            state=first.state,
            created_by=await self._creator(first),
            origin=await self._origin(trace_id, first),
            now=Instant.of(now),
            began_at=Instant.of(first.created_at),
            ended_at=None if None in ends else Instant.of(max(end for end in ends if end is not None)),
            total=len(runs) + sum(task.kind not in (ADVANCE, FUNCTION) for task in tasks),
            entries=await self._with_details(page, {run.id: run for run in runs}, executing),
            next_after=page[-1].id if page and page[-1].id != entries[-1].id else None,
        )

    # roots

    async def _find_roots(self, any_id: str) -> tuple[list[str], str | None]:
        try:
            parsed_id = parse_id(any_id)
        except InvalidInput:
            parsed_id = None
        root_id, trace_id = (None, any_id) if parsed_id is None else await self._find_root(parsed_id)
        if trace_id is None and root_id is None:
            trace_id = any_id
        shared = trace_id is None or trace_id.startswith(_SHARED) or not trace_id.isprintable()
        others = [] if shared else await self._store.traces.list_roots(self._namespace, str(trace_id), ROOTS)
        roots = list(dict.fromkeys((*([root_id] if root_id else []), *others)))
        if not roots:
            raise not_found("trace", any_id)
        return roots, trace_id

    async def _find_root(self, work_id: str) -> tuple[str | None, str | None]:
        """Return the root id and the trace id of a run, task, record or step."""
        entity: Run | Task | Record | None = (
            await self._store.runs.find(work_id) or await self._store.tasks.find(work_id) or await self._store.records.find(work_id)
        )
        if entity is None:
            try:
                entity = await self._store.runs.find((await self._steps.find_step(work_id)).run_id)
            except NotFound:
                entity = None
        if entity is None or entity.namespace != self._namespace:
            return None, None
        return entity.root_id, entity.trace_id

    async def _origin(self, trace_id: str | None, first: Run | TreeTask) -> TraceOrigin | None:
        kind, _, rest = (trace_id or "").partition(":")
        if kind in ("schedule", "watcher") and rest:
            name = _TICK.sub("", rest)
            record = await find_by_name_or_id(self._store, self._namespace, kind, name)
            return TraceOrigin(kind, None if record is None else record.id, name)
        if isinstance(first, Run) and first.parent_id is not None:
            return TraceOrigin("run", first.parent_id, first.workflow)
        return None

    async def _creator(self, first: Run | TreeTask) -> str | None:
        """Return the actor of the first transition of a run, or the one that enqueued a task."""
        if isinstance(first, Run):
            return next((transition.actor for transition in await self._store.log.list_transitions(first.id)), None)
        task = await self._store.tasks.find(first.id)
        return None if task is None else task.created_by

    # details

    async def _with_details(self, page: list[TraceEntry], runs: dict[str, Run], executing: dict[str, str]) -> list[TraceEntry]:
        """Add attempts, workers, arguments and spans to the entries of a page, and the steps of its functions.

        `executing` are the tasks that execute functions, by run.
        """
        ids = [executing.get(entry.id, entry.id) for entry in page if entry.kind == "task" or entry.id in executing]
        tasks = {task.id: task for task in (await self._store.tasks.find_many(ids) if ids else ())}
        moved = [task.id for task in tasks.values() if needs_transitions(task)]
        transitions: dict[str, list[Transition]] = defaultdict(list)
        for transition in await self._store.log.list_transitions(*moved) if moved else ():
            transitions[transition.entity_id].append(transition)
        entries: list[TraceEntry] = []
        functions = 0
        for entry in page:
            if (task := tasks.get(entry.id)) is not None:
                entry = _of_task(entry, task, transitions[task.id], await self._about(task))
            elif (task := tasks.get(executing.get(entry.id, ""))) is not None:
                entry = replace(entry, attempt=task.attempt, takeovers=task.takeovers, worker=task.owner_id)
            entries.append(entry)
            if entry.kind == "run" and is_function(runs[entry.id].flow_id) and functions < FUNCTIONS:
                functions += 1
                entries += await self._function_steps(runs[entry.id], entry.depth + 1)
        return entries

    async def _about(self, task: Task) -> str:
        try:
            payload = decode(self._value_store.plain(task.payload))
        except (TreadleError, ValueError):
            return ""
        return arguments_text(payload) if isinstance(payload, dict) else ""

    async def _function_steps(self, run: Run, depth: int) -> list[TraceEntry]:
        """The steps that a function executed itself; its calls and approvals are tasks and runs."""
        steps, _ = await self._steps.page_steps(run, limit=STEPS, in_program_order=False)
        own_steps = sorted((step for step in steps if task_of(step.row) is None), key=lambda step: step.began_at)
        return [
            TraceEntry(
                id=step.row.id,
                kind="step",
                name=step.row.name,
                about=step.about,
                state=str(step.state),
                depth=depth,
                run_id=run.id,
                created_at=Instant.of(step.created_at),
                began_at=Instant.of(step.began_at),
                ended_at=None if step.ended_at is None else Instant.of(step.ended_at),
                attempt=step.attempt,
                takeovers=0,
                worker=step.worker,
                error=None if step.row.error is None else str(step.row.error.message)[:300],
            )
            for step in own_steps
        ]


class _Tree:
    """The rows of a trace, arranged by cause."""

    def __init__(self, runs: Sequence[Run], tasks: Sequence[TreeTask], records: Sequence[Record], group: str | None) -> None:
        ids = {run.id for run in runs}
        visible = (task for task in tasks if task.kind not in (ADVANCE, FUNCTION))
        self._group = group
        self._tasks = _by(lambda task: task.run_id if task.run_id in ids else None, visible)
        self._children = _by(lambda run: run.parent_id if run.parent_step_id is not None and run.parent_id in ids else None, runs)
        self._records = _by(lambda record: record.task_id, (record for record in records if record.entity in _ENTITIES))

    def nodes(self) -> list[_Node]:
        """The entries at the top; with a group, its members alone."""
        if self._group is None:
            return self._below(None)
        above, _, name = self._group.partition("/")
        parent = None if above == "-" else above
        tasks = [_Node(_task(task)) for task in self._tasks[parent] if task.name == name]
        return tasks or [_Node(_run(run)) for run in self._children[parent] if run.workflow == name]

    def _below(self, run_id: str | None) -> list[_Node]:
        tasks, children = self._tasks[run_id], self._children[run_id]
        return [
            *_folded(run_id, tasks, lambda task: _Node(_task(task), [_Node(_record(row, task)) for row in self._records[task.id]])),
            *_folded(run_id, children, lambda run: _Node(_run(run), self._below(run.id))),
        ]


def _by(key: Callable[[T], K], rows: Iterable[T]) -> dict[K, list[T]]:
    groups: dict[K, list[T]] = defaultdict(list)
    for row in rows:
        groups[key(row)].append(row)
    return groups


def _folded(run_id: str | None, rows: Sequence[R], node_of: Callable[[R], _Node]) -> Iterator[_Node]:
    """Yield the nodes of rows of a run, or one node for many rows of one name."""
    for name, members in _by(_name, rows).items():
        if len(members) > FOLD:
            times = [(row.created_at, getattr(row, "claimed_at", None), row.finished_at) for row in members]
            yield _Node(_grouped(run_id, name, [row.state for row in members], times))
        else:
            yield from map(node_of, members)


def _name(row: Run | TreeTask) -> str:
    return row.workflow if isinstance(row, Run) else row.name


def _page(entries: list[TraceEntry], after: str | None, limit: int) -> list[TraceEntry]:
    start = 0
    if after is not None:
        start = next((at for at, entry in enumerate(entries, 1) if entry.id == after), -1)
        if start < 0:
            raise InvalidInput("The entry at which this page begins is gone; begin again at the first page.")
    return entries[start : start + limit]


def _first(runs: Sequence[Run], tasks: Sequence[TreeTask]) -> Run | TreeTask:
    roots: list[Run | TreeTask] = [*runs, *(task for task in tasks if task.run_id is None)]
    return min(roots or tasks, key=lambda work: (work.created_at, work.id))


def _run(run: Run) -> TraceEntry:
    return _entry(run.id, "run", run.workflow, run.state, run.id, (run.created_at, run.created_at, run.finished_at), run.error)


def _task(task: TreeTask) -> TraceEntry:
    return _entry(task.id, "task", task.name, task.state, task.run_id, (task.created_at, task.claimed_at, task.finished_at))


def _record(record: Record, task: TreeTask) -> TraceEntry:
    kind = _ENTITIES[record.entity]
    state = task.state if kind == "external_job" and record.state == "ended" else record.state
    times = record.created_at, record.created_at, record.ended_at
    entry = _entry(record.id, kind, task.name, state, record.run_id, times)
    try:
        document = decode_object(record.document)
    except (TreadleError, ValueError):
        return entry
    request = document.get("request")
    about = document.get("external_job_id") or (request.get("title") if isinstance(request, dict) else "")
    return replace(entry, about=str(about or "")[:120])


def _entry(
    entry_id: str,
    kind: str,
    name: str,
    state: str,
    run_id: str | None,
    times: tuple[int, int | None, int | None],
    error: str | None = None,
) -> TraceEntry:
    created_at, began_at, ended_at = times
    return TraceEntry(
        id=entry_id,
        kind=kind,
        name=name,
        about="",
        state=str(state),
        depth=0,
        run_id=run_id,
        created_at=Instant.of(created_at),
        began_at=None if began_at is None else Instant.of(began_at),
        ended_at=None if ended_at is None else Instant.of(ended_at),
        attempt=None,
        takeovers=0,
        worker=None,
        error=_message(error),
    )


def _grouped(run_id: str | None, name: str, states: list[str], times: list[tuple[int, int | None, int | None]]) -> TraceEntry:
    counts = Counter(map(str, states))
    begun = [began for _, began, _ in times if began is not None]
    ends = [end for _, _, end in times]
    latest = None if None in ends else max(end for end in ends if end is not None)
    span = min(created for created, _, _ in times), min(begun, default=None), latest
    state = "failed" if counts["failed"] else "completed" if set(counts) <= set(FINAL_TASK_STATES) else "running"
    entry = _entry(f"{run_id or '-'}/{name}", "group", name, state, run_id, span)
    return replace(entry, count=len(states), states=dict(sorted(counts.items())))


def _of_task(entry: TraceEntry, task: Task, transitions: Sequence[Transition], about: str) -> TraceEntry:
    return replace(
        entry,
        state=task.shown_state,
        about=about,
        attempt=task.attempt if task.claim_version else 0,
        takeovers=task.takeovers,
        worker=task.owner_id,
        error=_message(task.error),
        spans=spans(task, transitions),
    )


def _message(error: str | None) -> str | None:
    if error is None:
        return None
    details = decode_error(error)
    return str(details.get("message") or details.get("code") or "")[:300]
