"""The database below the ports, and the ports whose methods only run its statements: written once, above all stores.

A statement has the same name, parameters and columns in every store, and each store has its own SQL for it. Each docstring of a
port is the method's contract, and `treadle_conformance.StoreContract` checks it on every store.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Sequence
from functools import wraps
from typing import Any, Concatenate, NamedTuple, ParamSpec, Protocol, TypeVar

import msgspec

from treadle.kernel.store.queries import (
    LATEST_FAILURE,
    NEWEST,
    DeadLetterFilter,
    DeadLetterGroup,
    DeadLetterRef,
    EntityHistory,
    FailedRun,
    OpenWork,
    Place,
    RunFilter,
    StepTask,
    TransitionEvent,
    TreeTask,
)
from treadle.kernel.store.records import EffectFilter, RecordFilter
from treadle.kernel.store.units import Seen
from treadle.model.ids import id_time
from treadle.model.records import EffectOutcome, Message, Record, RecordItem, Stream, StreamChunk
from treadle.model.runs import ACTIVITY_KINDS, Flow, FlowVersion, Run, Step
from treadle.model.states import RunState
from treadle.model.tasks import LogLine, Task, Transition

P = ParamSpec("P")
S = TypeVar("S", bound="Port")
T = TypeVar("T")

_FIRST_ID = "00000000-0000-0000-0000-000000000000"
_decode_transition = msgspec.json.Decoder(Transition).decode
_decode_transitions = msgspec.json.Decoder(list[Transition]).decode
_decode_task = msgspec.json.Decoder(Task).decode
_ID_STATEMENTS = {"run": "list_run_ids", "task": "list_task_ids", "step": "list_step_ids"}
_LAST_SEQ = 2**62


class Statements(Protocol):
    """Runs statements by name. Ignores values that a statement has no parameter for; a list becomes an array.

    A list of tuples becomes rows: an array for each column (PostgreSQL) or JSON (SQLite).
    """

    async def fetch(self, name: str, /, **values: Any) -> list[Any]:
        """Run a statement; return its rows."""

    async def fetch_as(self, kind: type[T], name: str, /, **values: Any) -> list[T]:
        """Run a statement; return its rows as records with the columns as fields, and ids as text."""

    async def execute(self, name: str, /, **values: Any) -> int:
        """Run a statement; return the number of changed rows."""


Work = Callable[[Any], Coroutine[Any, Any, T]]
"""Work with a session."""


class Database(Statements, Protocol):
    """An open database, whose statements run in transactions of their own."""

    channel: str
    """The channel of its signals; empty in a store that has none."""
    seqs_in_order: bool
    """Whether transitions are committed in the order of their seqs."""

    async def read(self, work: Work[T]) -> T:
        """Run work that only reads, at one instant if the store can."""

    async def use(self, work: Work[T]) -> T:
        """Run work that begins its own transactions, with statements that are planned for their values."""

    async def write(self, work: Work[T]) -> T:
        """Run work in one transaction."""


class Port:
    """A port on a database."""

    def __init__(self, database: Database) -> None:
        self._database = database


PortWork = Callable[Concatenate[S, Any, P], Coroutine[Any, Any, T]]
Method = Callable[Concatenate[S, P], Coroutine[Any, Any, T]]


def reads(work: PortWork[S, P, T]) -> Method[S, P, T]:
    """Run the method with a session that only reads."""

    @wraps(work)
    async def call(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._database.read(lambda session: work(self, session, *args, **kwargs))

    return call


def uses(work: PortWork[S, P, T]) -> Method[S, P, T]:
    """Run the method with a session; it begins its own transactions."""

    @wraps(work)
    async def call(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._database.use(lambda session: work(self, session, *args, **kwargs))

    return call


def writes(work: PortWork[S, P, T]) -> Method[S, P, T]:
    """Run the method with a session in a transaction."""

    @wraps(work)
    async def call(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._database.write(lambda session: work(self, session, *args, **kwargs))

    return call


class ReadPort(Port):
    """A port with reads."""

    async def _find(self, kind: type[T], name: str, /, **values: Any) -> T | None:
        """Return the first row as a record."""
        return next(iter(await self._database.fetch_as(kind, name, **values)), None)

    async def _list_ids(self, name: str, /, **values: Any) -> list[str]:
        """Return the first column."""
        return [row[0] for row in await self._database.fetch(name, **values)]

    async def _place(self, statement: str, before: Place | None, before_id: str | None) -> dict[str, Any]:
        """Return the position before a page, as values: that of the row `before_id` if there is no other."""
        if before is None and before_id is not None:
            rows = await self._database.fetch(statement, id=before_id)
            before = Place(rows[0][0] if rows else id_time(before_id), before_id)
        place = before or NEWEST
        return {"before_at": place.created_at, "before_id": place.id}


def unique(values: Iterable[str]) -> list[str]:
    """Return the values without repetitions."""
    return list(dict.fromkeys(values))


class ScanRange(NamedTuple):
    """A part of the runs or tasks (`entity`) of a namespace: those after the position `before`, created at `after` or later."""

    entity: str
    namespace: str
    before: Place = NEWEST
    after: int = 0


def values_of(span: ScanRange) -> dict[str, Any]:
    """Return the span as values of a statement."""
    before_at, before_id = span.before
    return {"entity": span.entity, "namespace": span.namespace, "after": span.after, "before_at": before_at, "before_id": before_id}


def places(rows: Iterable[Any]) -> list[Place]:
    """Return rows of times and ids."""
    return [Place(created_at, owner_id) for created_at, owner_id in rows]


def _list_statement(which: RunFilter) -> str:
    """Return the statement that lists these runs through the most selective index."""
    if which.namespace is not None and which.activity is not None:
        return "list_runs_by_activity"
    if which.namespace is not None and len(which.states) == 1 and which.states != (RunState.COMPLETED,):
        return "list_runs_of_state"
    return "list_runs" if which.workflow is None else "list_runs_of_workflow"


def _values(which: DeadLetterFilter) -> dict[str, Any]:
    until_seq = _LAST_SEQ if which.until_seq is None else which.until_seq
    return msgspec.structs.asdict(which) | {"after_seq": which.after_seq or 0, "until_seq": until_seq}


class DeadLetterStore(ReadPort):
    """Failed tasks, for inspection and bulk operations."""

    async def list_newest(self, which: DeadLetterFilter, limit: int) -> list[Task]:
        """Return up to `limit` failed tasks, the most recent failure first (by seq, downwards from `until_seq`)."""
        return await self._database.fetch_as(Task, "list_dead_letters", **_values(which), limit=max(limit, 0))

    async def walk(self, which: DeadLetterFilter, limit: int) -> list[DeadLetterRef]:
        """Return up to `limit` failed tasks, the oldest failure first (by seq, upwards from `after_seq`)."""
        return [
            DeadLetterRef(Seen(task_id, version, claim_version), seq, root_id, run_id)
            for task_id, version, claim_version, seq, root_id, run_id in await self._database.fetch(
                "walk_dead_letters", **_values(which), limit=max(limit, 0)
            )
        ]

    async def group(self, which: DeadLetterFilter, limit: int) -> list[DeadLetterGroup]:
        """Return up to `limit` groups of failed tasks by (fingerprint, error code, name), the largest first."""
        rows = await self._database.fetch("group_dead_letters", **_values(which), limit=max(limit, 0))
        return [DeadLetterGroup(*row) for row in rows]

    async def count(self, which: DeadLetterFilter) -> tuple[int, int, int]:
        """Return the number of failed tasks, the number of them that belong to runs, and their greatest seq (0 for none)."""
        name = "count_dead_letters_in" if which.by_queue_alone else "count_dead_letters"
        ((count, of_runs, last_seq),) = await self._database.fetch(name, **_values(which))
        return count, of_runs, last_seq


class RunStore(ReadPort):
    """Reads of runs, steps, flows and large values. Units write them (`Store.commit`)."""

    async def find(self, run_id: str) -> Run | None:
        """Return the run."""
        return await self._find(Run, "find_run", id=run_id)

    async def find_many(self, run_ids: Sequence[str], states: Sequence[str] = ()) -> list[Run]:
        """Return those of the runs that exist, in one of the states unless there are none, in no order."""
        return await self._database.fetch_as(Run, "find_runs", ids=unique(run_ids), states=states or None)

    async def find_last_link(self, lineage_id: str) -> Run | None:
        """Return the last run of the lineage; None if its first run was not continued."""
        return await self._find(Run, "find_last_link", lineage_id=lineage_id)

    async def list_matching(self, which: RunFilter, limit: int) -> list[Run]:
        """Return up to `limit` runs, newest first (by creation time, then id)."""
        return await self._database.fetch_as(Run, _list_statement(which), **await self._values(which), limit=max(limit, 0))

    async def list_failed(self, namespace: str, after: int, limit: int, before: FailedRun = LATEST_FAILURE) -> list[FailedRun]:
        """Return up to `limit` runs that are failed and ended after the instant, latest first, from the one next to `before`."""
        values = {"namespace": namespace, "after": after, "limit": max(limit, 0)}
        rows = await self._database.fetch("list_failed_runs", **values, before_at=before.finished_at, before_id=before.id)
        return [FailedRun(*row) for row in rows]

    async def count(self, which: RunFilter) -> dict[str, int]:
        """Count the runs that match the filter, by state; all runs of a namespace are counted in an index alone."""
        if which.namespace is not None and which == RunFilter(namespace=which.namespace):
            return dict(await self._database.fetch("count_runs", namespace=which.namespace))
        return dict(await self._database.fetch("count_matching_runs", **await self._values(which)))

    async def count_activities(self, which: RunFilter, limit: int) -> dict[str, int]:
        """Count the newest `limit` unfinished runs that match the filter, by activity (`model/runs.py`)."""
        rows = await self._database.fetch("count_activities", **await self._values(which), limit=max(limit, 0))
        return {str(ACTIVITY_KINDS[rank]): count for rank, count in rows}

    async def _values(self, which: RunFilter) -> dict[str, Any]:
        return msgspec.structs.asdict(which) | {
            "states": which.states or None,
            "flow_ids": which.flow_ids or None,
            "created_after": which.created_after or 0,
            "created_before": NEWEST.created_at if which.created_before is None else which.created_before,
            **await self._place("find_run_created_at", which.before, which.before_id),
        }

    async def list_open_work(self, run_ids: Sequence[str]) -> list[OpenWork]:
        """Return the live tasks of the runs, counted by run and activity; in no order."""
        rows = await self._database.fetch("list_open_work", run_ids=unique(run_ids))
        return [OpenWork(ACTIVITY_KINDS[rank], count, _decode_task(task), record_id) for rank, count, task, record_id in rows]

    async def list_step_tasks(self, step_ids: Sequence[str]) -> list[StepTask]:
        """Return the live tasks of the steps; in no order."""
        return [StepTask(*row) for row in await self._database.fetch("list_step_tasks", step_ids=unique(step_ids))]

    async def list_children(self, run_id: str) -> list[str]:
        """Return the ids of the unfinished runs that steps of this run started (runs with a `parent_step_id`).

        Includes runs started by such a child that has finished meanwhile, at any depth.
        """

        return await self._list_ids("list_children", run_id=run_id)

    async def load_steps(
        self, run_id: str, near: Sequence[str] = (), rows: Sequence[str] = (), children_of: Sequence[str] = ()
    ) -> list[Step]:
        """Return steps of the run, each once, in no order.

        These are the steps `near`, their ancestors, and all children of both that are not items of a foreach; the steps
        `rows`; and all children of the steps `children_of`.
        """

        steps: dict[str, Step] = {}
        for name, ids in (("load_near", near), ("load_rows", rows), ("load_children", children_of)):
            if ids:
                steps |= {step.id: step for step in await self._database.fetch_as(Step, name, run_id=run_id, ids=unique(ids))}
        return list(steps.values())

    async def list_steps(self, run_id: str, after_id: str | None, limit: int, *, with_inbox: bool = False) -> list[Step]:
        """Return a page of the run's steps in order of id; `with_inbox`: the first `limit` of those with a non-empty inbox."""
        name = "list_inbox" if with_inbox else "list_steps"
        return await self._database.fetch_as(Step, name, run_id=run_id, after_id=after_id, limit=max(limit, 0))

    async def find_step(self, step_id: str) -> Step | None:
        """Return the step with that id, of any run."""
        return await self._find(Step, "find_step", id=step_id)

    async def find_flow(self, flow_id: str) -> Flow | None:
        """Return the flow with that digest."""
        return await self._find(Flow, "find_flow", id=flow_id)

    async def find_flow_version(self, namespace: str, name: str, version: int | None = None) -> FlowVersion | None:
        """Return a version of a published flow, the newest by default."""
        return await self._find(FlowVersion, "find_flow_version", namespace=namespace, name=name, version=version)

    async def list_flow_versions(self, namespace: str, name: str | None = None) -> list[FlowVersion]:
        """Return all versions of one name, or the newest version of every name."""
        statement = "list_newest_flows" if name is None else "list_flow_versions"
        return await self._database.fetch_as(FlowVersion, statement, namespace=namespace, name=name)

    async def find_blobs(self, digests: Sequence[str]) -> dict[str, str]:
        """Return the large values that exist, by digest."""
        return dict(await self._database.fetch("find_blobs", digests=digests))


class SearchStore(ReadPort):
    """Finds runs and tasks. Units write tags (`PutTags`); the store keeps the words of errors itself."""

    async def list_tags(self, owner_ids: Sequence[str]) -> dict[str, dict[str, str]]:
        """Return the tags of runs and tasks in stored form (`model.tags`), by id; those without tags are left out."""
        tags: dict[str, dict[str, str]] = {}
        for owner_id, key, value in await self._database.fetch("list_tags", ids=unique(owner_ids)):
            tags.setdefault(owner_id, {})[key] = value
        return tags

    async def list_tagged(self, span: ScanRange, key: str, value: str, limit: int) -> list[Place]:
        """Return up to `limit` runs or tasks of the span with that tag, newest first."""
        return places(await self._database.fetch("list_tagged", **values_of(span), key=key, value=value, limit=max(limit, 0)))

    async def list_tag_keys(self, entity: str, namespace: str, limit: int) -> list[str]:
        """Return up to `limit` keys of the tags of runs or tasks, in alphabetical order."""
        return await self._list_ids("list_tag_keys", entity=entity, namespace=namespace, limit=limit)

    async def list_with_words(self, span: ScanRange, words: Sequence[str], limit: int) -> list[Place]:
        """Return at least `limit` runs, or ended tasks, of the span whose error has all these words, newest first.

        Fewer means that there are no others. A word may end in `*`. Encoded errors are not found.
        """
        raise NotImplementedError

    async def list_failing_tasks(self, span: ScanRange, limit: int) -> list[Place]:
        """Return up to `limit` live tasks of the span with an error, newest first."""
        return places(await self._database.fetch("list_failing_tasks", **values_of(span), limit=max(limit, 0)))

    async def list_run_names(self, prefix: str, limit: int) -> list[str]:
        """Return up to `limit` names of workflows and functions with runs, of any namespace, that begin with the prefix."""
        return await self._list_ids("list_run_names", prefix=prefix, limit=limit)

    async def list_ids(self, entity: str, namespace: str, first: str, last: str, limit: int) -> list[str]:
        """Return up to `limit` ids of runs, tasks, steps, or records of that entity, from `first` to `last`, the greatest first."""
        values = {"namespace": namespace, "first": first, "last": last, "limit": limit, "entity": entity}
        return await self._list_ids(_ID_STATEMENTS.get(entity, "list_record_ids"), **values)


class RecordStore(ReadPort):
    """Reads of records, messages and effect outcomes. Units write them (`Store.commit`)."""

    async def find(self, record_id: str) -> Record | None:
        """Return the record, live or ended."""
        return await self._find(Record, "find_record", id=record_id)

    async def find_named(self, namespace: str, entity: str, name: str) -> Record | None:
        """Return the live record with that name."""
        return await self._find(Record, "find_record_named", namespace=namespace, entity=entity, name=name)

    async def list_matching(self, which: RecordFilter, limit: int) -> list[Record]:
        """Return up to `limit` records, newest first (by id)."""
        values = msgspec.structs.asdict(which) | {"states": which.states or None, "limit": max(limit, 0)}
        return await self._database.fetch_as(Record, self._list_statement(which), **values)

    def _list_statement(self, which: RecordFilter) -> str:
        return "list_records"

    async def count(self, namespace: str, entity: str) -> dict[str, int]:
        """Count the records of the entity by state."""
        return dict(await self._database.fetch("count_records", namespace=namespace, entity=entity))

    async def list_items(
        self, record_id: str, after_key: str | None = None, limit: int = 1000, *, keys: Sequence[str] | None = None
    ) -> list[RecordItem]:
        """Return a page of the record's items in order of key (by code point), or all items that exist among the keys."""
        name = "list_items" if keys is None else "find_items"
        values = {"after_key": after_key, "limit": max(limit, 0), "keys": keys}
        return [RecordItem(*row) for row in await self._database.fetch(name, record_id=record_id, **values)]

    async def list_messages(self, run_id: str, limit: int, after_seq: int = 0) -> list[Message]:
        """Return up to `limit` messages that the run has not consumed, in order of arrival.

        The messages read at a version of the run are all messages that exist at that version.
        """

        return await self._database.fetch_as(Message, "list_messages", run_id=run_id, limit=max(limit, 0), after_seq=after_seq)

    async def find_outcomes(self, keys: Sequence[str]) -> list[EffectOutcome]:
        """Return the recorded outcomes of the effects with these keys."""
        return await self._database.fetch_as(EffectOutcome, "find_outcomes", keys=unique(keys))

    async def list_outcomes(self, root_ids: Sequence[str], after_key: str | None, limit: int) -> list[EffectOutcome]:
        """Return a page of the outcomes of those trees' effects, in order of key (by code point)."""
        values = {"roots": unique(root_ids), "after_key": after_key, "limit": max(limit, 0)}
        return await self._database.fetch_as(EffectOutcome, "list_outcomes", **values)

    async def list_unknown(self, which: EffectFilter, limit: int) -> list[EffectOutcome]:
        """Return up to `limit` effects that have become unknown (`unknown_at`) and are still `unknown`, newest first."""
        unknown_at, key = which.before or (None, None)
        values = {"namespace": which.namespace, "task_id": which.task_id, "run_id": which.run_id}
        cursor = {"unknown_at": unknown_at, "key": key, "limit": max(limit, 0)}
        return await self._database.fetch_as(EffectOutcome, "list_unknown", **values, **cursor)

    async def count_unknown(self, root_ids: Sequence[str]) -> int:
        """Count the effects of those trees that are `unknown`: begun, with no recorded end."""
        ((count,),) = await self._database.fetch("count_unknown", roots=unique(root_ids))
        return int(count)


class LogStore(ReadPort):
    """Transitions, numbered by seq, and log lines."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self.seqs_in_order = database.seqs_in_order

    async def list_transitions(self, *entity_ids: str) -> list[Transition]:
        """Return the transitions of these entities, in order of entity and version; the end of a finished task is the last of
        them."""

        return await self._database.fetch_as(Transition, "list_transitions", ids=unique(entity_ids))

    async def list_takeovers(self, run_id: str, limit: int) -> list[Transition]:
        """Return the last `limit` expiries of leases on tasks of the run, oldest first; the actor is the owner that lost one."""
        return await self._database.fetch_as(Transition, "list_takeovers", run_id=run_id, limit=max(limit, 0))

    async def list_histories(self, after_id: str | None, limit: int) -> list[EntityHistory]:
        """Return the histories of up to `limit` tasks, runs and records after `after_id`, in order of id.

        Each history is read at one instant.
        """

        rows = await self._database.fetch("list_histories", after_id=after_id or _FIRST_ID, limit=max(limit, 0))
        return [
            EntityHistory(entity, entity_id, state, version, tuple(_decode_transitions(transitions)))
            for entity, entity_id, state, version, transitions in rows
        ]

    async def list_events(self, after_seq: int, until_seq: int, limit: int) -> list[TransitionEvent]:
        """Return up to `limit` transitions with a seq above `after_seq` and up to `until_seq`, in order, read at one instant.

        If `seqs_in_order`, every transition before a returned one is visible too. Otherwise one may appear up to 15 s later
        (D9). Gaps in the numbers are normal.
        """

        rows = await self._database.fetch("list_events", after_seq=after_seq, until_seq=until_seq, limit=max(limit, 0))
        return [TransitionEvent(namespace, _decode_transition(transition)) for namespace, transition in rows]

    async def list_changes(self, before_seq: int, actor: str | None, since: int, until: int, limit: int) -> list[TransitionEvent]:
        """Return the last `limit` changes by operators below a seq, at or after `since` and before `until`, the last one first.

        Their actor is not an id, as that of a worker is. Decisions about approvals are listed once, without their tasks; the
        starts of runs and the ends of the engine's own tasks are not listed.
        """

        values = {"before_seq": before_seq, "actor": actor, "since": since, "until": until, "limit": max(limit, 0)}
        rows = await self._database.fetch("list_changes", **values)
        return [TransitionEvent(namespace, _decode_transition(transition), name) for namespace, transition, name in rows]

    async def find_last_seq(self) -> int:
        """Return the last seq assigned to a transition, committed or not."""
        ((seq,),) = await self._database.fetch("find_last_seq")
        return int(seq)

    async def append_lines(self, lines: Sequence[LogLine]) -> None:
        """Store log lines. They are not fenced and have no order relative to commits."""
        if lines:
            rows = [(line.task_id, line.at, line.level, line.message, line.details, line.run_id, line.step_id) for line in lines]
            await self._database.execute("append_lines", rows=rows)

    async def list_lines(self, task_id: str, limit: int) -> list[LogLine]:
        """Return the task's last `limit` lines, oldest first."""
        return await self._database.fetch_as(LogLine, "list_lines", task_id=task_id, limit=max(limit, 0))

    async def page_run_lines(
        self, run_id: str, limit: int, before: int | None = None, after: int | None = None
    ) -> list[tuple[int, LogLine]]:
        """Return numbered lines of a run (of its tasks and its flow) in the order of writing.

        These are the first `limit` lines after the number `after`, or else the last `limit` lines before the number
        `before` (by default, the last lines).
        """

        name = "list_run_lines_before" if after is None else "list_run_lines_after"
        rows = await self._database.fetch(name, run_id=run_id, limit=max(limit, 0), before=before, after=after)
        fields = LogLine.__struct_fields__
        lines = [(number, LogLine(**dict(zip(fields, line, strict=True)))) for number, *line in rows]
        return lines[::-1] if after is None else lines


class TraceStore(ReadPort):
    """Reads of whole trees; each uses an index, and costs as much as the trees have rows, up to `limit`."""

    async def list_roots(self, namespace: str, trace_id: str, limit: int) -> list[str]:
        """Return up to `limit` ids of the runs and tasks that began a tree in this trace, newest first."""
        return await self._list_ids("list_trace_roots", namespace=namespace, trace_id=trace_id, limit=max(limit, 0))

    async def find_trees(
        self, root_ids: Sequence[str], runs: int, tasks: int, records: int
    ) -> tuple[list[Run], list[TreeTask], list[Record]]:
        """Return up to so many runs, tasks (live and finished) and records of the trees, each oldest first (by id)."""
        roots = unique(root_ids)
        tree_tasks = await self._database.fetch("list_tree_tasks", roots=roots, limit=tasks)
        return (
            await self._database.fetch_as(Run, "list_tree_runs", roots=roots, limit=runs),
            [TreeTask(*row) for row in tree_tasks],
            await self._database.fetch_as(Record, "list_tree_records", roots=roots, limit=records),
        )


class StreamStore(ReadPort):
    """Reads of streams; each uses an index. Offsets become visible in order: one that appears has all smaller ones before it."""

    async def list_of(self, owner_ids: Sequence[str]) -> list[Stream]:
        """Return the streams of these runs and tasks, in order of owner and name (by code point)."""
        return await self._database.fetch_as(Stream, "list_streams", ids=unique(owner_ids))

    async def list_chunks(self, owner_id: str, name: str, offset: int, limit: int) -> list[StreamChunk]:
        """Return up to `limit` chunks in order of offset, from the one that contains `offset` or else the next one.

        The first one may end before `offset` if the chunk that contained it was removed: a writer's last abandoned
        generation is kept, and older ones are removed when the next one is abandoned.
        """

        values = {"owner_id": owner_id, "name": name, "offset": offset, "limit": max(limit, 0)}
        return await self._database.fetch_as(StreamChunk, "list_chunks", **values)

    async def count_entries(self, owner_id: str, name: str, writer: str) -> int:
        """Return how many entries the last session of the writer has appended."""
        rows = await self._database.fetch("find_next_entry", owner_id=owner_id, name=name, writer=writer)
        return int(rows[0][0]) if rows else 0
