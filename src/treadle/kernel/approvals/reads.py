"""Reads of approvals, and the reason for which one waits."""

from __future__ import annotations

import msgspec

from treadle.kernel.approvals.decide import why_ended, why_waiting
from treadle.kernel.approvals.records import ENTITY, PENDING, ShownApproval
from treadle.kernel.queue.why import Reason
from treadle.kernel.reads.about import about_task
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

Page = list[ShownApproval]


class ApprovalReads:
    """The approvals of one namespace, without changing them."""

    def __init__(self, store: Store, value_store: ValueStore, namespace: str) -> None:
        self._store = store
        self._value_store = value_store
        self._namespace = namespace

    async def list(
        self,
        *,
        states: tuple[str, ...] = (PENDING,),
        task_id: Ref | None = None,
        run_id: Ref | None = None,
        before_id: Ref | None = None,
        limit: int = 50,
    ) -> Page:
        """Return a page of approvals, newest first, by default the pending ones; `states=()` means all."""
        if unknown := [state for state in states if state not in MACHINE.states]:
            raise InvalidInput(f"Unknown state {unknown[0]!r}; approvals are {', '.join(MACHINE.states)}.")
        check_limit(limit)
        which = RecordFilter(
            ENTITY,
            namespace=self._namespace,
            states=states,
            task_id=None if task_id is None else await find_id(self._store, self._namespace, "task", task_id),
            run_id=None if run_id is None else await self._run_id(run_id, current=states == (PENDING,)),
            before_id=None if before_id is None else parse_id(before_id, "cursor"),
        )
        shown = [await self._shown(record) for record in await self._store.records.list_matching(which, limit)]
        asking = {each.task_id for each in shown if not each.about}
        tasks = {task.id: task for task in (await self._store.tasks.find_many(list(asking)) if asking else [])}
        return [
            msgspec.structs.replace(each, about=about_task(tasks[each.task_id], self._value_store))
            if each.task_id in tasks
            else each
            for each in shown
        ]

    async def _run_id(self, named: Ref, *, current: bool) -> str:
        """The id of the run, or of the current run of its chain: only that one can have pending approvals."""
        run_id = await find_id(self._store, self._namespace, "run", named)
        run = await self._store.runs.find(run_id) if current else None
        return run_id if run is None else (await current_run(self._store, run)).id

    async def show(self, approval_id: Ref) -> ShownApproval:
        """Return one approval with its history, or raise `ApprovalNotFound`."""
        record = await self._get(approval_id)
        shown = await self._shown(record)
        return msgspec.structs.replace(shown, moves=tuple(await self._store.log.list_moves(record.id)))

    async def count(self) -> dict[str, int]:
        """Return the number of approvals in each state."""
        return dict.fromkeys(MACHINE.states, 0) | await self._store.records.count(self._namespace, ENTITY)

    def explain(self, shown: ShownApproval) -> Reason:
        """Explain in one line why the approval waits, or how it ended."""
        approval = shown.approval
        return why_waiting(shown.id, approval) if shown.state == PENDING else why_ended(shown.state, approval)

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

    async def _shown(self, record: Record) -> ShownApproval:
        approval = await self._any_approval(record)
        return ShownApproval(
            id=record.id,
            state=record.state,
            task_id=record.task_id or "",
            run_id=record.run_id,
            approval=approval,
            about=arguments_text(approval.context),
            created_at=record.created_at,
            ended_at=record.ended_at,
        )
