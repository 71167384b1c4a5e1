"""Reads of approvals, and the reason for which one waits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from treadle.api import approvals as api
from treadle.api.approvals import ApprovalCounts, ApprovalDetail, ApprovalPage
from treadle.api.tasks import Why
from treadle.api.wire import record_of
from treadle.kernel.approvals.decide import why_ended, why_waiting
from treadle.kernel.approvals.records import ENTITY, PENDING
from treadle.kernel.queue.why import Reason
from treadle.kernel.reads.about import about_task
from treadle.kernel.reads.records import move_record
from treadle.kernel.store.lookups import PAGE_LIMIT, check_limit, current_run, every_record, find_id
from treadle.kernel.store.ports import Store
from treadle.kernel.store.records import RecordFilter, unreadable
from treadle.kernel.store.value_store import ValueLost, ValueStore
from treadle.model.approvals import Approval, ApprovalRequest
from treadle.model.errors import ApprovalNotFound, InvalidInput, UnreadableValue
from treadle.model.ids import Ref, parse_id
from treadle.model.records import UNREADABLE, Record
from treadle.model.states import APPROVAL as MACHINE
from treadle.model.states import TaskState
from treadle.model.stored import convert
from treadle.model.tasks import Task
from treadle.model.values import arguments_text

A = TypeVar("A", bound=api.Approval)


class ApprovalReads:
    """The approvals of one namespace, without changing them."""

    def __init__(self, store: Store, value_store: ValueStore, namespace: str) -> None:
        self._store = store
        self._value_store = value_store
        self._namespace = namespace

    async def list(
        self,
        *,
        state: Sequence[str] = (),
        every: bool = False,
        task_id: Ref | None = None,
        run_id: Ref | None = None,
        limit: int = 50,
        before: Ref | None = None,
    ) -> ApprovalPage:
        """Return a page of approvals, newest first: the pending ones, those in certain states, or with `every` all."""
        states = () if every else tuple(state) or (PENDING,)
        if unknown := [name for name in states if name not in MACHINE.states]:
            raise InvalidInput(f"Unknown state {unknown[0]!r}; approvals are {', '.join(MACHINE.states)}.")
        check_limit(limit)
        which = RecordFilter(
            ENTITY,
            namespace=self._namespace,
            states=states,
            task_id=None if task_id is None else await find_id(self._store, self._namespace, "task", task_id),
            run_id=None if run_id is None else await self._run_id(run_id, current=states == (PENDING,)),
            before_id=None if before is None else parse_id(before, "cursor"),
        )
        records = await self._store.records.list_matching(which, limit)
        approvals = [(record, await self._any_approval(record)) for record in records]
        asking = {record.task_id or "" for record, approval in approvals if not approval.context}
        tasks = {task.id: task for task in (await self._store.tasks.find_many(list(asking)) if asking else [])}
        page = [self._shown(api.Approval, record, approval, tasks.get(record.task_id or "")) for record, approval in approvals]
        return ApprovalPage(page, page[-1].id if len(page) == limit else None)

    async def _run_id(self, named: Ref, *, current: bool) -> str:
        """The id of the run, or of the current run of its chain: only that one can have pending approvals."""
        run_id = await find_id(self._store, self._namespace, "run", named)
        run = await self._store.runs.find(run_id) if current else None
        return run_id if run is None else (await current_run(self._store, run)).id

    async def get(self, approval_id: Ref) -> ApprovalDetail:
        """Return one approval with its history, or raise `ApprovalNotFound`."""
        record = await self._get(approval_id)
        approval = await self._any_approval(record)
        reason = why_waiting(record.id, approval) if record.state == PENDING else why_ended(record.state, approval)
        return self._shown(
            ApprovalDetail,
            record,
            approval,
            moves=[move_record(move) for move in await self._store.log.list_moves(record.id)],
            why=Why(record.id, approval.request.title, record.state, reason.code, reason.text),
        )

    async def find_request(self, approval_id: str) -> tuple[Record, Approval]:
        """Return the record and the body of an approval, or raise `ApprovalNotFound`."""
        record = await self._get(approval_id)
        return record, await self._any_approval(record)

    async def counts(self) -> ApprovalCounts:
        """Return the number of approvals in each state."""
        counts = await self._store.records.count(self._namespace, ENTITY)
        return ApprovalCounts(**dict.fromkeys(MACHINE.states, 0) | counts)

    async def why(self, task: Task) -> Reason | None:
        """Explain in one line why a task that awaits an approval waits."""
        record = await self._find_pending(task)
        return None if record is None else why_waiting(record.id, await self._any_approval(record))

    async def find_orphans(self, limit: int = PAGE_LIMIT) -> tuple[Record, ...]:
        """Return pending approvals that no task waits for any more."""
        orphans = []
        which = RecordFilter(ENTITY, namespace=self._namespace, states=(PENDING,))
        async for record in every_record(self._store, which, limit):
            task = await self._store.tasks.find(record.task_id or "")
            if task is None or task.state != TaskState.AWAITING_APPROVAL:
                orphans.append(record)
        return tuple(orphans)

    async def is_over(self, record: Record, now: int) -> bool:
        """Return whether the time to decide it has passed."""
        expires_at = (await self._any_approval(record)).expires_at
        return expires_at is not None and expires_at <= now

    async def _get(self, approval_id: Ref) -> Record:
        approval_id = await find_id(self._store, self._namespace, ENTITY, approval_id)
        record = await self._store.records.find(approval_id)
        if record is None or record.entity != ENTITY or record.namespace != self._namespace:
            raise ApprovalNotFound(approval_id)
        return record

    async def _find_pending(self, task: Task) -> Record | None:
        which = RecordFilter(ENTITY, namespace=self._namespace, states=(PENDING,), task_id=task.id)
        found = await self._store.records.list_matching(which, 1)
        return found[0] if found else None

    async def _approval(self, record: Record) -> Approval:
        try:
            return convert(Approval, await self._value_store.unpack(record.body))
        except UnreadableValue as error:
            raise unreadable(record, error) from None

    async def _any_approval(self, record: Record) -> Approval:
        """Decode the approval; one that cannot be read has the reason as its title, so that it can be listed and canceled."""
        try:
            return await self._approval(record)
        except (UnreadableValue, ValueLost) as error:
            return Approval(request=ApprovalRequest(title=f"({UNREADABLE}) {error}"), requested_at=record.created_at)

    def _shown(self, kind: type[A], record: Record, approval: Approval, task: Task | None = None, **more: Any) -> A:
        """Return the approval for display; `task` is the one that asks, whose payload describes it without a context."""
        about = arguments_text(approval.context)
        if not about and task is not None:
            about = about_task(task, self._value_store)
        return record_of(kind, record, approval, approval.request, task_id=record.task_id or "", about=about, **more)
