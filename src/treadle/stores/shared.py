"""Ports written once for both stores, over the statements of their own `.sql` files, by name.

A statement has the same name, parameters and columns in both. The ports of `treadle.kernel.store.ports` document the methods.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

import msgspec

from treadle.kernel.store.ports import ScanRange
from treadle.kernel.store.queries import (
    LATEST_FAILURE,
    NEWEST,
    DeadLetterFilter,
    DeadLetterGroup,
    DeadLetterRef,
    EntityHistory,
    FailedRun,
    LeaseExtension,
    OpenWork,
    Place,
    QueueDepth,
    Renewal,
    RunFilter,
    StepTask,
    Tally,
    TaskEnd,
    TaskFilter,
    Touch,
    TransitionEvent,
    TreeTask,
)
from treadle.kernel.store.records import EffectFilter, RecordFilter
from treadle.kernel.store.transfer import NamespaceImport, StoredRow
from treadle.kernel.store.units import Seen
from treadle.model.errors import StoreBusy
from treadle.model.ids import id_time
from treadle.model.lists import Limit, QueueRule, TaskList
from treadle.model.names import QueueKey
from treadle.model.records import EffectOutcome, HandlerRegistration, Message, Record, RecordItem, Stream, StreamChunk
from treadle.model.runs import DOINGS, Flow, FlowVersion, Run, Step
from treadle.model.states import FINAL_TASK_STATES, RunState
from treadle.model.tasks import LogLine, Server, Task, Transition
from treadle.stores import leases, limits
from treadle.stores.rules.encoding import first_id, registration_of, server_of
from treadle.stores.rules.namespaces import from_common
from treadle.stores.session import Database, Session

TableRow = tuple[str, StoredRow]
"""The name of a table and one of its rows."""

P = ParamSpec("P")
S = TypeVar("S", bound="Port")
T = TypeVar("T")


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


class RecordPort(ReadPort):
    """The `RecordStore` of both stores."""

    async def find(self, record_id: str) -> Record | None:
        return await self._find(Record, "find_record", id=record_id)

    async def find_named(self, namespace: str, entity: str, name: str) -> Record | None:
        return await self._find(Record, "find_record_named", namespace=namespace, entity=entity, name=name)

    async def list_matching(self, which: RecordFilter, limit: int) -> list[Record]:
        values = msgspec.structs.asdict(which) | {"states": which.states or None, "limit": max(limit, 0)}
        return await self._database.fetch_as(Record, self._list_statement(which), **values)

    def _list_statement(self, which: RecordFilter) -> str:
        return "list_records"

    async def count(self, namespace: str, entity: str) -> dict[str, int]:
        return dict(await self._database.fetch("count_records", namespace=namespace, entity=entity))

    async def list_items(
        self, record_id: str, after_key: str | None = None, limit: int = 1000, *, keys: Sequence[str] | None = None
    ) -> list[RecordItem]:
        name = "list_items" if keys is None else "find_items"
        values = {"after_key": after_key, "limit": max(limit, 0), "keys": keys}
        return [RecordItem(*row) for row in await self._database.fetch(name, record_id=record_id, **values)]

    async def list_messages(self, run_id: str, limit: int, after_seq: int = 0) -> list[Message]:
        return await self._database.fetch_as(Message, "list_messages", run_id=run_id, limit=max(limit, 0), after_seq=after_seq)

    async def find_outcomes(self, keys: Sequence[str]) -> list[EffectOutcome]:
        return await self._database.fetch_as(EffectOutcome, "find_outcomes", keys=unique(keys))

    async def list_outcomes(self, root_ids: Sequence[str], after_key: str | None, limit: int) -> list[EffectOutcome]:
        values = {"roots": unique(root_ids), "after_key": after_key, "limit": max(limit, 0)}
        return await self._database.fetch_as(EffectOutcome, "list_outcomes", **values)

    async def list_unknown(self, which: EffectFilter, limit: int) -> list[EffectOutcome]:
        unknown_at, key = which.before or (None, None)
        values = {"namespace": which.namespace, "task_id": which.task_id, "run_id": which.run_id}
        cursor = {"unknown_at": unknown_at, "key": key, "limit": max(limit, 0)}
        return await self._database.fetch_as(EffectOutcome, "list_unknown", **values, **cursor)

    async def count_unknown(self, root_ids: Sequence[str]) -> int:
        ((count,),) = await self._database.fetch("count_unknown", roots=unique(root_ids))
        return int(count)


class Traces(ReadPort):
    """The `TraceStore` of both stores."""

    async def list_roots(self, namespace: str, trace_id: str, limit: int) -> list[str]:
        return await self._list_ids("list_trace_roots", namespace=namespace, trace_id=trace_id, limit=max(limit, 0))

    async def find_trees(
        self, root_ids: Sequence[str], runs: int, tasks: int, records: int
    ) -> tuple[list[Run], list[TreeTask], list[Record]]:
        roots = unique(root_ids)
        tree_tasks = await self._database.fetch("list_tree_tasks", roots=roots, limit=tasks)
        return (
            await self._database.fetch_as(Run, "list_tree_runs", roots=roots, limit=runs),
            [TreeTask(*row) for row in tree_tasks],
            await self._database.fetch_as(Record, "list_tree_records", roots=roots, limit=records),
        )


class StreamPort(ReadPort):
    """The `StreamStore` of both stores; `streams.py` appends."""

    async def list_of(self, owner_ids: Sequence[str]) -> list[Stream]:
        return await self._database.fetch_as(Stream, "list_streams", ids=unique(owner_ids))

    async def list_chunks(self, owner_id: str, name: str, offset: int, limit: int) -> list[StreamChunk]:
        values = {"owner_id": owner_id, "name": name, "offset": offset, "limit": max(limit, 0)}
        return await self._database.fetch_as(StreamChunk, "list_chunks", **values)

    async def count_entries(self, owner_id: str, name: str, writer: str) -> int:
        rows = await self._database.fetch("find_next_entry", owner_id=owner_id, name=name, writer=writer)
        return int(rows[0][0]) if rows else 0


class Log(ReadPort):
    """The `LogStore` of both stores."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self.seqs_in_order = database.seqs_in_order

    async def list_transitions(self, *entity_ids: str) -> list[Transition]:
        return await self._database.fetch_as(Transition, "list_transitions", ids=unique(entity_ids))

    async def list_takeovers(self, run_id: str, limit: int) -> list[Transition]:
        return await self._database.fetch_as(Transition, "list_takeovers", run_id=run_id, limit=max(limit, 0))

    async def list_histories(self, after_id: str | None, limit: int) -> list[EntityHistory]:
        rows = await self._database.fetch("list_histories", after_id=after_id or _FIRST_ID, limit=max(limit, 0))
        return [
            EntityHistory(entity, entity_id, state, version, tuple(_decode_transitions(transitions)))
            for entity, entity_id, state, version, transitions in rows
        ]

    async def list_events(self, after_seq: int, until_seq: int, limit: int) -> list[TransitionEvent]:
        rows = await self._database.fetch("list_events", after_seq=after_seq, until_seq=until_seq, limit=max(limit, 0))
        return [TransitionEvent(namespace, _decode_transition(transition)) for namespace, transition in rows]

    async def find_last_seq(self) -> int:
        ((seq,),) = await self._database.fetch("find_last_seq")
        return int(seq)

    async def tally(self, after_seq: int, until_seq: int) -> list[Tally]:
        return [Tally(*row) for row in await self._database.fetch("tally", after_seq=after_seq, until_seq=until_seq)]

    async def list_ends(self, limit: int) -> list[TaskEnd]:
        return [TaskEnd(*row) for row in await self._database.fetch("list_ends", limit=max(limit, 0))]

    async def append_lines(self, lines: Sequence[LogLine]) -> None:
        if lines:
            rows = [(line.task_id, line.at, line.level, line.message, line.details, line.run_id, line.step_id) for line in lines]
            await self._database.execute("append_lines", rows=rows)

    async def list_lines(self, task_id: str, limit: int) -> list[LogLine]:
        return await self._database.fetch_as(LogLine, "list_lines", task_id=task_id, limit=max(limit, 0))

    async def page_run_lines(
        self, run_id: str, limit: int, before: int | None = None, after: int | None = None
    ) -> list[tuple[int, LogLine]]:
        name = "list_run_lines_before" if after is None else "list_run_lines_after"
        rows = await self._database.fetch(name, run_id=run_id, limit=max(limit, 0), before=before, after=after)
        fields = LogLine.__struct_fields__
        lines = [(number, LogLine(**dict(zip(fields, line, strict=True)))) for number, *line in rows]
        return lines[::-1] if after is None else lines


_FINAL = frozenset(FINAL_TASK_STATES)
_FIRST_ID = first_id(0)
_decode_transition = msgspec.json.Decoder(Transition).decode
_decode_transitions = msgspec.json.Decoder(list[Transition]).decode
_decode_task = msgspec.json.Decoder(Task).decode

_ID_STATEMENTS = {"run": "list_run_ids", "task": "list_task_ids", "step": "list_step_ids"}


class SearchPort(ReadPort):
    """The reads of the `SearchStore` that both stores have in common: all but those by words."""

    async def list_tags(self, owner_ids: Sequence[str]) -> dict[str, dict[str, str]]:
        tags: dict[str, dict[str, str]] = {}
        for owner_id, key, value in await self._database.fetch("list_tags", ids=unique(owner_ids)):
            tags.setdefault(owner_id, {})[key] = value
        return tags

    async def list_tagged(self, span: ScanRange, key: str, value: str, limit: int) -> list[Place]:
        return places(await self._database.fetch("list_tagged", **values_of(span), key=key, value=value, limit=max(limit, 0)))

    async def list_failing_tasks(self, span: ScanRange, limit: int) -> list[Place]:
        return places(await self._database.fetch("list_failing_tasks", **values_of(span), limit=max(limit, 0)))

    async def list_run_names(self, prefix: str, limit: int) -> list[str]:
        return await self._list_ids("list_run_names", prefix=prefix, limit=limit)

    async def list_ids(self, entity: str, namespace: str, first: str, last: str, limit: int) -> list[str]:
        values = {"namespace": namespace, "first": first, "last": last, "limit": limit, "entity": entity}
        return await self._list_ids(_ID_STATEMENTS.get(entity, "list_record_ids"), **values)


def values_of(span: ScanRange) -> dict[str, Any]:
    """Return the span as values of a statement."""
    before_at, before_id = span.before
    return {"entity": span.entity, "namespace": span.namespace, "after": span.after, "before_at": before_at, "before_id": before_id}


def places(rows: Iterable[Any]) -> list[Place]:
    """Return rows of times and ids."""
    return [Place(created_at, owner_id) for created_at, owner_id in rows]


_RULE_COLUMNS = ("rate", "burst", "tokens", "tokens_at", "backlog_limit", "limit_key")


class OperatorPort(ReadPort):
    """The `OperatorStore` of both stores."""

    async def list_lists(self) -> list[TaskList]:
        return await self._database.fetch_as(TaskList, "list_lists")

    async def list_queue_rules(self) -> list[QueueRule]:
        return [queue_rule(*row) for row in await self._database.fetch("list_queue_rules")]

    @uses
    async def set_list(
        self,
        session: Session,
        namespace: str,
        task_list: str,
        *,
        paused: bool | None = None,
        accepting: bool | None = None,
        no_handler: str | None = None,
    ) -> tuple[int, ...]:
        names = {"namespace": namespace, "task_list": task_list}
        async with session.transaction():
            await session.coordinate("lock_lists")
            await session.execute("set_list", **names, paused=paused, accepting=accepting, no_handler=no_handler)
            queues = {row[0] for row in await session.fetch("mark_list", **names)}
            if paused is not None:
                keys = await session.fetch("recall_list" if paused else "list_waiting_keys", **names)
                queues |= await limits.admit(session, {(namespace, row[0]) for row in keys})
        return tuple(sorted(queues))

    async def set_rate(self, queue_id: int, rate: float | None, burst: int | None) -> None:
        await self._database.execute("set_rate", queue_id=queue_id, rate=rate, burst=burst)

    @uses
    async def set_limit(self, session: Session, namespace: str, key: str, max_running: int | None) -> tuple[int, ...]:
        return tuple(sorted(await limits.set_limit(session, namespace, key, max_running)))

    @uses
    async def set_key_rate(
        self, session: Session, namespace: str, key: str, rate: float | None, burst: int | None
    ) -> tuple[int, ...]:
        return tuple(sorted(await limits.set_key_rate(session, namespace, key, rate, burst)))

    @uses
    async def set_handler_key(self, session: Session, namespace: str, name: str, key: str | None) -> tuple[int, ...]:
        return tuple(sorted(await limits.set_handler_key(session, namespace, name, key)))

    async def set_backlog_limit(self, queue_id: int, backlog_limit: int | None) -> None:
        await self._database.execute("set_backlog_limit", queue_id=queue_id, backlog_limit=backlog_limit)

    async def list_limits(self, namespace: str) -> list[Limit]:
        return await self._database.fetch_as(Limit, "list_limits", namespace=namespace)

    async def list_admitted(self, namespace: str, key: str, limit: int) -> list[str]:
        return await self._list_ids("list_admitted", namespace=namespace, key=key, limit=max(limit, 0))

    async def list_handler_keys(self, namespace: str) -> dict[str, str]:
        return dict(await self._database.fetch("list_handler_keys", namespace=namespace))

    async def list_handlers(self, namespace: str) -> list[HandlerRegistration]:
        return [registration_of(row) for row in await self._database.fetch("list_handlers", namespace=namespace)]

    async def save_handler(self, namespace: str, registration: HandlerRegistration) -> None:
        await self._database.execute(
            "save_handler",
            namespace=namespace,
            facet_name=registration.facet_name,
            module_uri=registration.module_uri,
            entrypoint=registration.entrypoint,
            version=registration.version,
            checksum=registration.checksum,
            timeout_for=registration.timeout_ms,
            requirements=msgspec.json.encode(registration.requirements).decode(),
            metadata=msgspec.json.encode(registration.metadata).decode(),
        )

    async def delete_handler(self, namespace: str, facet_name: str) -> bool:
        return await self._database.execute("delete_handler", namespace=namespace, facet_name=facet_name) > 0


def queue_rule(
    queue_id: int, namespace: str, kind: str, task_list: str, name: str, paused: Any, accepting: Any, *rest: Any
) -> QueueRule:
    """Return a row of the queues as a rule; SQLite has numbers for truth values."""
    values = dict(zip(_RULE_COLUMNS, rest, strict=True))
    queue = QueueKey(namespace, kind, task_list, name)
    return QueueRule(queue_id=queue_id, queue=queue, paused=bool(paused), accepting=bool(accepting), **values)


class RunPort(ReadPort):
    """The `RunStore` of both stores."""

    async def find(self, run_id: str) -> Run | None:
        return await self._find(Run, "find_run", id=run_id)

    async def find_many(self, run_ids: Sequence[str], states: Sequence[str] = ()) -> list[Run]:
        return await self._database.fetch_as(Run, "find_runs", ids=unique(run_ids), states=states or None)

    async def find_last_link(self, chain_id: str) -> Run | None:
        return await self._find(Run, "find_last_link", chain_id=chain_id)

    async def list_matching(self, which: RunFilter, limit: int) -> list[Run]:
        return await self._database.fetch_as(Run, _list_statement(which), **await self._values(which), limit=max(limit, 0))

    async def list_failed(self, namespace: str, after: int, limit: int, before: FailedRun = LATEST_FAILURE) -> list[FailedRun]:
        values = {"namespace": namespace, "after": after, "limit": max(limit, 0)}
        rows = await self._database.fetch("list_failed_runs", **values, before_at=before.finished_at, before_id=before.id)
        return [FailedRun(*row) for row in rows]

    async def count(self, which: RunFilter) -> dict[str, int]:
        if which.namespace is not None and which == RunFilter(namespace=which.namespace):
            return dict(await self._database.fetch("count_runs", namespace=which.namespace))
        return dict(await self._database.fetch("count_matching_runs", **await self._values(which)))

    async def count_doing(self, which: RunFilter, limit: int) -> dict[str, int]:
        rows = await self._database.fetch("count_doing", **await self._values(which), limit=max(limit, 0))
        return {str(DOINGS[rank]): count for rank, count in rows}

    async def _values(self, which: RunFilter) -> dict[str, Any]:
        return msgspec.structs.asdict(which) | {
            "states": which.states or None,
            "flow_ids": which.flow_ids or None,
            "created_after": which.created_after or 0,
            "created_before": NEWEST.created_at if which.created_before is None else which.created_before,
            **await self._place("find_run_created_at", which.before, which.before_id),
        }

    async def list_open_work(self, run_ids: Sequence[str]) -> list[OpenWork]:
        rows = await self._database.fetch("list_open_work", run_ids=unique(run_ids))
        return [OpenWork(DOINGS[rank], count, _decode_task(task), record_id) for rank, count, task, record_id in rows]

    async def list_step_tasks(self, step_ids: Sequence[str]) -> list[StepTask]:
        return [StepTask(*row) for row in await self._database.fetch("list_step_tasks", step_ids=unique(step_ids))]

    async def list_children(self, run_id: str) -> list[str]:
        return await self._list_ids("list_children", run_id=run_id)

    async def load_steps(
        self, run_id: str, near: Sequence[str] = (), rows: Sequence[str] = (), children_of: Sequence[str] = ()
    ) -> list[Step]:
        steps: dict[str, Step] = {}
        for name, ids in (("load_near", near), ("load_rows", rows), ("load_children", children_of)):
            if ids:
                steps |= {step.id: step for step in await self._database.fetch_as(Step, name, run_id=run_id, ids=unique(ids))}
        return list(steps.values())

    async def list_steps(self, run_id: str, after_id: str | None, limit: int, *, with_inbox: bool = False) -> list[Step]:
        name = "list_inbox" if with_inbox else "list_steps"
        return await self._database.fetch_as(Step, name, run_id=run_id, after_id=after_id, limit=max(limit, 0))

    async def find_step(self, step_id: str) -> Step | None:
        return await self._find(Step, "find_step", id=step_id)

    async def find_flow(self, flow_id: str) -> Flow | None:
        return await self._find(Flow, "find_flow", id=flow_id)

    @writes
    async def publish_flow(self, session: Session, namespace: str, name: str, flow_id: str, actor: str) -> FlowVersion:
        values = {"namespace": namespace, "name": name}
        for _ in range(_TRIES):
            if inserted := await session.fetch_as(FlowVersion, "publish_flow", **values, flow_id=flow_id, actor=actor):
                return inserted[0]
            newest = await session.fetch_as(FlowVersion, "find_flow_version", **values, version=None)
            if newest and newest[0].flow_id == flow_id:
                return newest[0]
        raise StoreBusy(f"Other processes are publishing the flow {name}; try again.")

    async def find_flow_version(self, namespace: str, name: str, version: int | None = None) -> FlowVersion | None:
        return await self._find(FlowVersion, "find_flow_version", namespace=namespace, name=name, version=version)

    async def list_flow_versions(self, namespace: str, name: str | None = None) -> list[FlowVersion]:
        statement = "list_newest_flows" if name is None else "list_flow_versions"
        return await self._database.fetch_as(FlowVersion, statement, namespace=namespace, name=name)

    async def find_blobs(self, digests: Sequence[str]) -> dict[str, str]:
        return dict(await self._database.fetch("find_blobs", digests=digests))


def _list_statement(which: RunFilter) -> str:
    """Return the statement that lists these runs through the most selective index."""
    if which.namespace is not None and which.doing is not None:
        return "list_runs_doing"
    if which.namespace is not None and len(which.states) == 1 and which.states != (RunState.COMPLETED,):
        return "list_runs_of_state"
    return "list_runs" if which.workflow is None else "list_runs_of_workflow"


_TRIES = 20
_LAST_SEQ = 2**62


class TaskPort(ReadPort):
    """The part of the `TaskStore` that both stores have in common."""

    async def extend(self, renewals: Sequence[Renewal], lease_for: int) -> dict[str, LeaseExtension]:
        channel = self._database.channel
        return await self._database.write(lambda session: leases.extend(session, channel, renewals, lease_for, within_timeout=True))

    async def expire_leases_of(self, owner_ids: Sequence[str]) -> int:
        return await self._database.execute("expire_leases", owners=owner_ids)

    async def list_unpolled(self, queue_ids: Sequence[int], limit: int) -> list[str]:
        return await self._list_ids("list_unpolled", queue_ids=queue_ids, limit=max(limit, 0))

    async def list_failing(self, queue_ids: Sequence[int], limit: int) -> list[str]:
        return await self._list_ids("list_failing", queue_ids=queue_ids, limit=max(limit, 0))

    async def find(self, task_id: str) -> Task | None:
        return await self._find(Task, "find_tasks", ids=[task_id])

    async def find_many(self, task_ids: Sequence[str], *, ended: bool = False) -> list[Task]:
        tasks = await self._database.fetch_as(Task, "find_finished" if ended else "find_tasks", ids=unique(task_ids))
        return sorted(tasks, key=lambda task: (task.created_at, task.id), reverse=True)

    async def find_unique(self, namespace: str, keys: Sequence[str]) -> dict[str, str]:
        return dict(await self._database.fetch("find_unique", namespace=namespace, keys=keys))

    async def find_finished(self, task_ids: Sequence[str]) -> list[Task]:
        return await self._database.fetch_as(Task, "find_finished", ids=unique(task_ids))

    async def list_matching(self, which: TaskFilter, limit: int) -> list[Task]:
        final = _FINAL.intersection(which.states)
        values = msgspec.structs.asdict(which) | {
            "states": which.states or None,
            "live": len(final) < len(which.states) or not which.states,
            "ended": bool(final) or not which.states,
            "limit": max(limit, 0),
            **await self._place("find_task_created_at", which.before, which.before_id),
        }
        return await self._database.fetch_as(Task, "list_tasks" if which.run_id is None else "list_run_tasks", **values)

    async def list_depths(self) -> list[QueueDepth]:
        return [
            QueueDepth(queue_id, QueueKey(namespace, kind, task_list, name), *counts)
            for queue_id, namespace, kind, task_list, name, *counts in await self._database.fetch("list_depths")
        ]

    async def count_finished(self) -> dict[str, int]:
        return dict(await self._database.fetch("count_finished"))


class NamespacePort(ReadPort):
    """The part of the `NamespaceStore` that both stores have in common; rows are read and written by each."""

    def _read(self, session: Any, queue_ids: Mapping[QueueKey, int], namespace: str, shift: int = 0) -> AsyncIterator[TableRow]:
        """Yield the rows of the namespace with their tables; `shift` was added to the numbers of transitions."""
        raise NotImplementedError

    async def _write(self, session: Any, table: str, rows: list[StoredRow]) -> None:
        """Insert rows of a table."""
        raise NotImplementedError

    async def list_names(self) -> list[str]:
        return await self._list_ids("list_namespaces")

    @uses
    async def import_rows(self, session: Session, incoming: NamespaceImport) -> None:
        namespace, header = incoming.namespace, incoming.header
        async with session.transaction():
            queues = await list_queues(session)
            async for table, row in self._read(session, queues, namespace):
                incoming.refuse_row(table, row)
            ((before,),) = await session.fetch("reserve_seqs", count=header.last_seq - header.first_seq + 1)
            shift = before + 1 - header.first_seq
            for table, batch in incoming.batches():
                await self._write(session, table, from_common(batch, namespace, queues, shift))
                queues = await list_queues(session) if table == "queues" else queues
            async for table, row in self._read(session, queues, namespace, shift):
                incoming.check_row(table, row)
            incoming.finish()


async def list_queues(session: Session) -> dict[QueueKey, int]:
    """Return the ids of all queues."""
    return {QueueKey(*row[1:5]): row[0] for row in await session.fetch("list_queues")}


class ServerPort(ReadPort):
    """The part of the `ServerStore` that both stores have in common."""

    async def list_all(self, namespace: str | None = None) -> list[Server]:
        return [server_of(row) for row in await self._database.fetch_as(dict, "list_servers", namespace=namespace)]

    @writes
    async def save(self, session: Session, server: Server) -> None:
        await leases.beat(session, server)

    async def touch(self, touches: Sequence[Touch]) -> list[Server]:
        ordered = sorted(touches, key=lambda touch: touch.server_id)
        rows = [(touch.server_id, touch.state, touch.handled, touch.failed, touch.running) for touch in ordered]
        return await self._touch(rows) if rows else []

    @writes
    async def _touch(self, session: Session, rows: list[tuple[Any, ...]]) -> list[Server]:
        return [server_of(row) for row in await session.fetch_as(dict, "touch_servers", rows=rows)]

    async def end(self, evidence: Mapping[str, str | None]) -> list[str]:
        return await self._end(sorted(evidence.items())) if evidence else []

    @writes
    async def _end(self, session: Session, rows: list[tuple[str, str | None]]) -> list[str]:
        return [row[0] for row in await session.fetch("end_servers", rows=rows)]


class DeadLetterPort(ReadPort):
    """The `DeadLetterStore` of both stores."""

    async def list_newest(self, which: DeadLetterFilter, limit: int) -> list[Task]:
        return await self._database.fetch_as(Task, "list_dead_letters", **_values(which), limit=max(limit, 0))

    async def walk(self, which: DeadLetterFilter, limit: int) -> list[DeadLetterRef]:
        return [
            DeadLetterRef(Seen(task_id, version, claim_version), seq, root_id, run_id)
            for task_id, version, claim_version, seq, root_id, run_id in await self._database.fetch(
                "walk_dead_letters", **_values(which), limit=max(limit, 0)
            )
        ]

    async def group(self, which: DeadLetterFilter, limit: int) -> list[DeadLetterGroup]:
        rows = await self._database.fetch("group_dead_letters", **_values(which), limit=max(limit, 0))
        return [DeadLetterGroup(*row) for row in rows]

    async def count(self, which: DeadLetterFilter) -> tuple[int, int, int]:
        name = "count_dead_letters_in" if which.by_queue_alone else "count_dead_letters"
        ((count, of_runs, last_seq),) = await self._database.fetch(name, **_values(which))
        return count, of_runs, last_seq


def _values(which: DeadLetterFilter) -> dict[str, Any]:
    until_seq = _LAST_SEQ if which.until_seq is None else which.until_seq
    return msgspec.structs.asdict(which) | {"after_seq": which.after_seq or 0, "until_seq": until_seq}
