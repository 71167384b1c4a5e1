"""The check of stored bodies (`store verify`): rows whose text cannot be read, page by page, each with its repair.

Texts are read as their users read them, without large values. A text of a codec that this process does not have is skipped.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

from treadle.kernel.access.requests import RequestBody
from treadle.kernel.access.sessions import SessionBody
from treadle.kernel.access.tokens import TokenBody
from treadle.kernel.queue.decide import policy_of
from treadle.kernel.runs.flows import Flows
from treadle.kernel.runs.step_codec import load_step
from treadle.kernel.store.pages import PAGE_LIMIT
from treadle.kernel.store.ports import Store
from treadle.kernel.store.queries import RunFilter, TaskFilter
from treadle.kernel.store.records import RecordFilter
from treadle.kernel.store.value_store import ValueStore
from treadle.model.alerts import AlertBody, AlertRuleBody
from treadle.model.approvals import Approval
from treadle.model.errors import TreadleError, UnreadableValue
from treadle.model.records import Record
from treadle.model.runs import Flow, Run, Step
from treadle.model.schedules import ScheduleBody
from treadle.model.states import (
    ALERT,
    ALERT_RULE,
    APPROVAL,
    EXTERNAL,
    MACHINES,
    REQUEST,
    RUN,
    SCHEDULE,
    SESSION,
    STEP,
    TASK,
    TOKEN,
    WATCHER,
)
from treadle.model.stored import convert, read
from treadle.model.tasks import Task
from treadle.model.values import BlobRef, decode
from treadle.model.watchers import WatcherBody

RECORDS = sorted(MACHINES.keys() - {TASK.entity, RUN.entity, STEP.entity, EXTERNAL.entity})
"""Entities with bodies; those of external jobs are compared with their events."""
PARTS = (TASK.entity, RUN.entity, *RECORDS, "rest")

_TEXT_LIMIT = 300
_KINDS: dict[str, Any] = {
    SCHEDULE.entity: ScheduleBody,
    WATCHER.entity: WatcherBody,
    ALERT_RULE.entity: AlertRuleBody,
    ALERT.entity: AlertBody,
    TOKEN.entity: TokenBody,
    SESSION.entity: SessionBody,
    REQUEST.entity: RequestBody,
}
_REPAIRS = {
    TASK.entity: "`treadle tasks retry ID --payload JSON` after its end, or cancel it",
    RUN.entity: "`treadle runs cancel ID`, then `treadle runs rerun ID`",
    "flow": "publish its sources again",
    SCHEDULE.entity: "`treadle schedules edit` with its time and target, or remove it",
    WATCHER.entity: "`treadle watchers remove`, then add it again",
    ALERT_RULE.entity: "`treadle alerts remove`, then add it again",
    APPROVAL.entity: "cancel its task or its run",
    TOKEN.entity: "`treadle token revoke`, then create another",
    "objective": "`treadle objectives edit ID --title TEXT`",
    "handler": "register it again",
    "server": "its next heartbeat replaces the row",
}

Problems = list[str]


class Bodies:
    """The stored bodies of one namespace."""

    def __init__(self, store: Store, value_store: ValueStore, flows: Flows, *, namespace: str) -> None:
        """`store` is the store itself, without the codec."""
        self._store = store
        self._value_store = value_store
        self._flows = flows
        self._namespace = namespace

    async def check_page(self, part: str, before_id: str | None, limit: int) -> tuple[Problems, tuple[str, str] | None]:
        """Check up to `limit` rows from that part on, newest first, older than `before_id`; return the problems and the next
        part and id, or None at the end."""
        problems: Problems = []
        for each in PARTS[PARTS.index(part) :]:
            found, ids = await self._check_part(each, before_id, limit)
            problems += found
            if len(ids) == limit:
                return problems, (each, ids[-1])
            limit, before_id = limit - len(ids), None
        return problems, None

    async def _check_part(self, part: str, before_id: str | None, limit: int) -> tuple[Problems, list[str]]:
        """Check up to `limit` rows of one part; return the problems and the ids of the rows."""
        if part == TASK.entity:
            tasks = await self._store.list_tasks(TaskFilter(namespace=self._namespace, before_id=before_id), limit)
            return [each for task in tasks for each in self._check_task(task)], [task.id for task in tasks]
        if part == RUN.entity:
            runs = await self._store.list_runs(RunFilter(namespace=self._namespace, before_id=before_id), limit)
            problems = [each for run in runs async for each in self._check_run(run)]
            return problems + await self._check_flows(run.flow_id for run in runs), [run.id for run in runs]
        if part in RECORDS:
            records = await self._store.list_records(RecordFilter(part, self._namespace, before_id=before_id), limit)
            return [each for record in records for each in self._check_record(record)], [record.id for record in records]
        return await self._check_rest(), []

    def _check_task(self, task: Task) -> Problems:
        what = f"task {task.id} ({task.name})"
        texts = {"payload": task.payload, "result": task.result, "progress": task.progress, "error": task.error}
        problems = [problem for name, text in texts.items() for problem in self._check_object(TASK.entity, what, name, text)]
        problems += self._check(TASK.entity, what, "retry policy", task.policy, lambda _: policy_of(task))
        return problems + self._check(TASK.entity, what, "checkpoint", task.checkpoint, decode)

    async def _check_run(self, run: Run) -> AsyncIterator[str]:
        what = f"run {run.id} ({run.workflow})"
        for name, text in (("inputs", run.inputs), ("outputs", run.outputs), ("error", run.error)):
            for problem in self._check_object(RUN.entity, what, name, text):
                yield problem
        after_id: str | None = None
        while steps := await self._store.list_steps(run.id, after_id, PAGE_LIMIT):
            after_id = steps[-1].id
            for step in steps:
                for problem in self._check_step(step):
                    yield problem
        seq = 0
        while messages := [] if run.finished else await self._store.list_messages(run.id, PAGE_LIMIT, seq):
            seq = messages[-1].seq
            for message in messages:
                for problem in self._check_object(RUN.entity, f"message {message.id} to the {what}", "body", message.body):
                    yield problem

    def _check_step(self, step: Step) -> Problems:
        what = f"step {step.id} ({step.name}) of the run {step.run_id}"
        return self._check(RUN.entity, what, "body", step.body, lambda _: load_step(step, self._value_store))

    def _check_record(self, record: Record) -> Problems:
        what = f"{record.entity} {record.id}" + (f" ({record.name})" if record.name else "")
        return self._check(record.entity, what, "body", record.body, lambda text: self._read(record.entity, text))

    def _read(self, entity: str, text: str) -> None:
        if (kind := _KINDS.get(entity)) is not None:
            read(kind, text)
            return
        body = self._value_store.unfold(text)
        if entity == APPROVAL.entity and not any(isinstance(value, BlobRef) for value in body.values()):
            convert(Approval, body)

    async def _check_flows(self, flow_ids: Iterable[str]) -> Problems:
        found = [await self._store.find_flow(flow_id) for flow_id in dict.fromkeys(flow_ids)]
        return [problem for flow in found if flow is not None for problem in self._check_flow(flow)]

    def _check_flow(self, flow: Flow) -> Problems:
        return self._check("flow", f"flow {flow.id}", "program", flow.program, lambda _: self._flows.check(flow))

    async def _check_rest(self) -> Problems:
        """Check published flows, handler registrations and servers."""
        versions = [
            each
            for newest in await self._store.list_flow_versions(self._namespace)
            for each in await self._store.list_flow_versions(self._namespace, newest.name)
        ]
        problems = await self._check_flows(each.flow_id for each in versions)
        for handler in await self._store.list_handlers(self._namespace):
            if handler.unreadable is not None:
                problems.append(_problem("handler", f"handler of {handler.facet_name}", handler.unreadable))
        for server in await self._store.list_servers():
            error = decode(server.error) if server.error else None
            if isinstance(error, dict) and error.get("code") == UnreadableValue.code:
                problems.append(_problem("server", f"server {server.id} ({server.name})", str(error.get("message"))))
        return problems

    def _check_object(self, entity: str, what: str, name: str, text: str | None) -> Problems:
        return self._check(entity, what, name, text, self._value_store.unfold)

    def _check(self, entity: str, what: str, name: str, text: str | None, reader: Callable[[str], Any]) -> Problems:
        if text is None or self._value_store.is_foreign(text):
            return []
        try:
            reader(self._value_store.plain(text))
        except TreadleError as error:
            return [_problem(entity, f"{what}: its {name}", str(error))]
        return []


def _problem(entity: str, what: str, error: str) -> str:
    repair = _REPAIRS.get(entity)
    text = f"{what} cannot be read: {' '.join(error.split())[:_TEXT_LIMIT]}"
    return text if repair is None else f"{text} Repair: {repair}."
