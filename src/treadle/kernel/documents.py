"""The check of stored documents (`store verify`): rows whose text cannot be read, page by page, each with its repair.

Texts are read as their users read them, without large values. A text of a codec that this process does not have is skipped.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from functools import partial
from operator import attrgetter, itemgetter
from types import SimpleNamespace
from typing import Any

from treadle.kernel.access.requests import RequestDocument
from treadle.kernel.access.sessions import SessionDocument
from treadle.kernel.access.tokens import TokenDocument
from treadle.kernel.core import Core
from treadle.kernel.effects.decide import check_response
from treadle.kernel.queue.decide import policy_of
from treadle.kernel.runs.decide import inbox_event, load_step
from treadle.kernel.runs.flows import Flows
from treadle.kernel.store.lookups import PAGE_LIMIT
from treadle.kernel.store.ports import Store
from treadle.kernel.store.queries import RunFilter, TaskFilter
from treadle.kernel.store.records import RecordFilter
from treadle.kernel.store.value_store import ValueStore
from treadle.kernel.streams import check_entries
from treadle.model.alerts import AlertDocument, AlertRuleDocument
from treadle.model.approvals import Approval
from treadle.model.declarations import DeclarationsDocument
from treadle.model.errors import TreadleError, UnreadableValue
from treadle.model.records import Record, ThreadItem
from treadle.model.runs import Run
from treadle.model.schedules import ScheduleDocument
from treadle.model.states import (
    ALERT,
    ALERT_RULE,
    APPROVAL,
    DECLARATIONS,
    EXTERNAL,
    MACHINES,
    REQUEST,
    RUN,
    SCHEDULE,
    SESSION,
    STEP,
    TASK,
    THREAD,
    TOKEN,
    WATCHER,
)
from treadle.model.stored import convert, read
from treadle.model.values import BlobRef, decode, decode_object
from treadle.model.watchers import Item, WatcherDocument

RECORDS = sorted(MACHINES.keys() - {TASK.entity, RUN.entity, STEP.entity})
PARTS = (TASK.entity, RUN.entity, *RECORDS, "rest")

_TEXT_LIMIT = 300
_KINDS: dict[str, Any] = {
    SCHEDULE.entity: ScheduleDocument,
    WATCHER.entity: WatcherDocument,
    ALERT_RULE.entity: AlertRuleDocument,
    ALERT.entity: AlertDocument,
    TOKEN.entity: TokenDocument,
    SESSION.entity: SessionDocument,
    REQUEST.entity: RequestDocument,
    DECLARATIONS.entity: DeclarationsDocument,
}
_ITEMS: dict[str, Any] = {WATCHER.entity: Item, THREAD.entity: ThreadItem}
_REPAIRS = {
    TASK.entity: "`treadle tasks retry ID --payload JSON` after its end, or cancel it",
    RUN.entity: "`treadle runs cancel ID`, then `treadle runs rerun ID`",
    "flow": "publish its sources again",
    SCHEDULE.entity: "`treadle schedules edit` with its time and target, or remove it",
    WATCHER.entity: "`treadle watchers remove`, then add it again",
    ALERT_RULE.entity: "`treadle alerts remove`, then add it again",
    ALERT.entity: "its rule ends it; nothing else depends on it",
    DECLARATIONS.entity: "`treadle declare --handlers MODULE --overwrite` for each program",
    APPROVAL.entity: "cancel its task or its run",
    TOKEN.entity: "`treadle token revoke`, then create another",
    SESSION.entity: "log in again",
    REQUEST.entity: "none is needed: it expires; send the request with another idempotency key",
    "objective": "`treadle objectives edit ID --title TEXT`",
    "handler": "register it again",
    "server": "its next heartbeat replaces the row",
    "transition": "none is needed: nothing depends on it, and only this part of the history is lost",
    "item of a watcher": "the next scan replaces it",
    "item of a thread": "continue from an earlier checkpoint, or delete the thread (`adelete_thread`)",
    "effect": "find out whether the effect was made; then retry its task or rerun its run",
}

Problems = list[str]
Checked = tuple[str, str, str, Any]
"""A row to check: its table, the entity that it belongs to, its description, and the row."""
Reader = Callable[["Documents", Any, str], object]
"""Reads a plain text of a row as its users do; raises `UnreadableValue`."""


def _object(documents: Documents, row: object, text: str) -> object:
    return documents.value_store.unfold(text)


def _error(documents: Documents, row: object, text: str) -> object:
    error = decode_object(text)
    if not all(isinstance(error.get(name), str | None) for name in ("code", "message")):
        raise UnreadableValue("Its code or message is not text. It is damaged.")
    return error


def _document(documents: Documents, record: Record, text: str) -> object:
    if (kind := _KINDS.get(record.entity)) is not None:
        return read(kind, text)
    document = documents.value_store.unfold(text)
    if record.entity == APPROVAL.entity and not any(isinstance(value, BlobRef) for value in document.values()):
        convert(Approval, document)
    return document


_BY_STORE = "the store reads it with the row, which then carries the reason"
_FLOW: Reader = lambda documents, flow, _: documents.flows.check(flow)  # noqa: E731

TEXTS: dict[str, dict[str, Reader | str]] = {
    "tasks": {
        "payload": _object,
        "result": _object,
        "progress": _object,
        "error": _error,
        "policy": lambda documents, task, text: policy_of(task),
        "checkpoint": lambda documents, task, text: decode(text),
        "baggage": _object,
    },
    "runs": {"inputs": _object, "outputs": _object, "error": _error, "baggage": _object},
    "steps": {
        "document": lambda documents, step, text: load_step(step, documents.value_store),
        "inbox": lambda documents, step, text: inbox_event(step.id, text, documents.value_store),
        "state": "a word, which is shown as it is",
    },
    "mail": {"document": _object},
    "records": {"document": _document},
    "record_items": {"value": lambda documents, item, text: read(_ITEMS[item.entity], text)},
    "log": {"data": lambda documents, transition, text: decode_object(text)},
    "idempotency_outcomes": {
        "response": lambda documents, outcome, text: check_response(outcome, documents.value_store.unfold(text)),
        "details": lambda documents, outcome, text: decode_object(text),
    },
    "stream_chunks": {"entries": lambda documents, chunk, text: check_entries(chunk, decode(text))},
    "flows": {"program": _FLOW, "sources": "read together with the program"},
    "handler_registrations": {"requirements": _BY_STORE, "metadata": _BY_STORE},
    "servers": {**dict.fromkeys(("handlers", "task_lists", "topics", "counts"), _BY_STORE), "error": _error},
    "metrics": dict.fromkeys(("durations", "waits"), "only counted, where a damaged histogram counts as an empty one"),
    "lines": {"details": "only shown, where a damaged one is replaced by the reason; there may be millions"},
    "blobs": {"value": "`verify` compares large values with their digests on SQLite; PostgreSQL has checksums"},
}
"""Every column that holds JSON, by table (finished tasks have those of tasks): its reader, or why none reads it here."""


class Documents:
    """The stored documents of one namespace."""

    def __init__(self, core: Core, store: Store, flows: Flows) -> None:
        """`store` is the store itself, without the codec."""
        self._store = store
        self._namespace = core.namespace
        self.value_store: ValueStore = core.value_store
        self.flows: Flows = flows

    async def check_page(self, part: str, before_id: str | None, limit: int) -> tuple[Problems, tuple[str, str] | None]:
        """Check up to `limit` rows from that part on, newest first, older than `before_id`; return the problems and the next
        part and id, or None at the end."""
        problems: Problems = []
        for current_part in PARTS[PARTS.index(part) :]:
            part_problems, ids = await self._check_part(current_part, before_id, limit)
            problems += part_problems
            if len(ids) == limit:
                return problems, (current_part, ids[-1])
            limit, before_id = limit - len(ids), None
        return problems, None

    async def _check_part(self, part: str, before_id: str | None, limit: int) -> tuple[Problems, list[str]]:
        """Check up to `limit` rows of one part; return the problems and the ids of the rows."""
        if part == TASK.entity:
            tasks = await self._store.tasks.list_matching(TaskFilter(namespace=self._namespace, before_id=before_id), limit)
            problems = [problem for task in tasks for problem in self._check("tasks", part, f"task {task.id} ({task.name})", task)]
            errors = {task.id: task.error for task in tasks}
        elif part == RUN.entity:
            runs = await self._store.runs.list_matching(RunFilter(namespace=self._namespace, before_id=before_id), limit)
            problems = [problem for run in runs async for row in self._rows_of_run(run) for problem in self._check(*row)]
            problems += await self._check_flows(run.flow_id for run in runs)
            errors = {run.id: run.error for run in runs}
        elif part in RECORDS:
            records = await self._store.records.list_matching(RecordFilter(part, self._namespace, before_id=before_id), limit)
            problems = [
                problem for record in records async for row in self._rows_of_record(record) for problem in self._check(*row)
            ]
            errors = dict.fromkeys(record.id for record in records)
        else:
            return await self._check_rest(), []
        problems += [problem async for row in self._histories(errors) for problem in self._check(*row)]
        return problems, list(errors)

    async def _histories(self, errors: dict[str, str | None]) -> AsyncIterator[Checked]:
        """Yield the transitions of entities, except those that repeat the entity's error, the effects of their trees, and their
        streams."""
        if not (ids := list(errors)):
            return
        for transition in await self._store.log.list_transitions(*ids):
            if transition.data != errors[transition.entity_id]:
                of = f"of the {transition.entity} {transition.entity_id}"
                yield "log", "transition", f"transition {transition.version} ({transition.transition}) {of}", transition
        outcomes = partial(self._store.records.list_outcomes, ids)
        async for outcome in _every(outcomes, None, attrgetter("idempotency_key")):
            what = f"effect {outcome.idempotency_key} of the task {outcome.task_id or outcome.root_id}"
            yield "idempotency_outcomes", "effect", what, outcome
        for stream in await self._store.streams.list_of(ids):
            offset = 0
            while chunks := await self._store.streams.list_chunks(stream.owner_id, stream.name, offset, PAGE_LIMIT):
                for chunk in chunks:
                    what = f"offset {chunk.first_offset} of the stream {stream.name} of {stream.owner_id}"
                    if chunk.first_offset >= offset:
                        yield "stream_chunks", "stream", what, chunk
                if (after := chunks[-1].first_offset + chunks[-1].count) <= offset:
                    break
                offset = after

    async def _rows_of_run(self, run: Run) -> AsyncIterator[Checked]:
        what = f"run {run.id} ({run.workflow})"
        yield "runs", RUN.entity, what, run
        async for step in _every(partial(self._store.runs.list_steps, run.id), None, attrgetter("id")):
            yield "steps", RUN.entity, f"step {step.id} ({step.name}) of the run {step.run_id}", step
        if not run.finished:
            messages = lambda seq, limit: self._store.records.list_messages(run.id, limit, seq)  # noqa: E731
            async for message in _every(messages, 0, attrgetter("seq")):
                yield "mail", RUN.entity, f"message {message.id} to the {what}", message

    async def _rows_of_record(self, record: Record) -> AsyncIterator[Checked]:
        """Yield a record and, of a watcher or a thread, its items; records and items of external jobs are compared with each
        other elsewhere, and those of objectives have only keys."""
        what = f"{record.entity} {record.id}" + (f" ({record.name})" if record.name else "")
        if record.entity != EXTERNAL.entity:
            yield "records", record.entity, what, record
        if record.entity in _ITEMS:
            async for key, value in _every(partial(self._store.records.list_items, record.id), None, itemgetter(0)):
                item = SimpleNamespace(value=value, entity=record.entity)
                yield "record_items", f"item of a {record.entity}", f"item {key[:100]} of the {what}", item

    async def _check_flows(self, flow_ids: Iterable[str]) -> Problems:
        flows = [await self._store.runs.find_flow(flow_id) for flow_id in dict.fromkeys(flow_ids)]
        return [problem for flow in flows if flow is not None for problem in self._check("flows", "flow", f"flow {flow.id}", flow)]

    async def _check_rest(self) -> Problems:
        """Check published flows, handler registrations and servers."""
        versions = [
            version
            for newest in await self._store.runs.list_flow_versions(self._namespace)
            for version in await self._store.runs.list_flow_versions(self._namespace, newest.name)
        ]
        problems = await self._check_flows(version.flow_id for version in versions)
        for handler in await self._store.operators.list_handlers(self._namespace):
            if handler.unreadable is not None:
                problems.append(_problem("handler", f"handler of {handler.facet_name}", handler.unreadable))
        for server in await self._store.servers.list_all(self._namespace):
            what = f"server {server.id} ({server.name})"
            server_problems = self._check("servers", "server", what, server)
            error = decode(server.error) if server.error and not server_problems else None
            if isinstance(error, dict) and error.get("code") == UnreadableValue.code:
                server_problems.append(_problem("server", what, str(error.get("message"))))
            problems += server_problems
        return problems

    def _check(self, table: str, entity: str, what: str, row: Any) -> Problems:
        """Read the texts of a row; return its problems, with the repair of that entity."""
        problems = []
        for name, reader in TEXTS[table].items():
            text = None if isinstance(reader, str) else getattr(row, name)
            if text is None or isinstance(reader, str) or self.value_store.is_foreign(text):
                continue
            try:
                reader(self, row, self.value_store.plain(text))
            except TreadleError as error:
                problems.append(_problem(entity, f"{what}: its {'retry policy' if name == 'policy' else name}", str(error)))
        return problems


async def _every(
    read: Callable[[Any, int], Awaitable[Sequence[Any]]], after: Any, cursor_of: Callable[[Any], Any]
) -> AsyncIterator[Any]:
    """Yield the rows of all pages."""
    while page := await read(after, PAGE_LIMIT):
        for row in page:
            yield row
        after = cursor_of(page[-1])


def _problem(entity: str, what: str, error: str) -> str:
    repair = _REPAIRS.get(entity, "restore a backup if it matters; nothing else is affected")
    return f"{what} cannot be read: {' '.join(error.split())[:_TEXT_LIMIT]} Repair: {repair}."
