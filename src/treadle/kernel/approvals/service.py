"""Approvals: asking, deciding, and the actions due while nobody decides. Each is one unit: the record and the waiting task.

No loop polls for decisions: deciding settles the waiting task immediately, and the task's `wake_at` is the next reminder,
escalation or expiry. When it is due, a worker claims the task and calls `process_due` instead of its handler.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Literal, NamedTuple, TypeVar

import msgspec

from treadle.api import approvals as api
from treadle.api.approvals import ApprovalCounts, ApprovalDetail, ApprovalPage, DecisionError, DecisionResult, DecisionResults
from treadle.api.contract import Lookup
from treadle.api.tasks import Why
from treadle.api.wire import record_of
from treadle.kernel.approvals.decide import (
    DOCUMENT_LIMIT,
    ENTITY,
    PENDING,
    approved,
    check_decision,
    check_vote,
    denied,
    expired,
    requeued,
    why_ended,
    why_waiting,
)
from treadle.kernel.core import Core, Service
from treadle.kernel.queue.decide import failure
from treadle.kernel.queue.service import Follow
from treadle.kernel.queue.why import Reason
from treadle.kernel.reads.about import about_task
from treadle.kernel.reads.records import transition_record
from treadle.kernel.store.committer import Stale
from treadle.kernel.store.lookups import check_limit, current_run, every_record, find_id
from treadle.kernel.store.records import ChangeRecord, PutRecord, RecordFilter, unreadable
from treadle.kernel.store.units import Finish, PutBlob, Requeue, Row, Seen, Unit, UnitAnswer, Verdict
from treadle.kernel.store.value_store import ValueLost
from treadle.model.access import Access
from treadle.model.approvals import (
    APPROVE,
    ASK_AGAIN,
    DENY,
    Approval,
    ApprovalRequest,
    decision_of,
    next_action,
    open_approval,
    vote,
)
from treadle.model.errors import InvalidInput, NotFound, TreadleError, UnreadableValue, not_found
from treadle.model.ids import Ref, parse_id
from treadle.model.names import ENGINE_LIST, NOTIFY, QueueKey
from treadle.model.outcomes import Problem
from treadle.model.records import UNREADABLE, Record
from treadle.model.runs import Run
from treadle.model.states import APPROVAL as MACHINE
from treadle.model.states import TaskState
from treadle.model.stored import convert, plain
from treadle.model.tasks import Claim, NewTask, Task
from treadle.model.values import Json, arguments_text, encode

MANY = 100
"""Maximum number of approvals per call from outside."""


class ProcessedApproval(NamedTuple):
    """The committed action, and the verdict on it."""

    answer: UnitAnswer
    settlement: Finish | Requeue


ProcessDue = Callable[[Task, Claim], Awaitable[ProcessedApproval]]
"""Performs and commits the action that is due for a task that waits for an approval."""


A = TypeVar("A", bound=api.Approval)


class Approvals(Service, Lookup[ApprovalDetail]):
    """The approvals of one namespace: their reads, and every change of them."""

    def __init__(self, core: Core, *, follow: Follow | None = None, notifies: bool = False) -> None:
        super().__init__(core)
        self._follow = follow
        self._notifies = notifies

    # reads

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
        return ApprovalPage(page, next_before=page[-1].id if len(page) == limit else None)

    async def _run_id(self, named: Ref, *, current: bool) -> str:
        """The id of the run, or of the current run of its lineage: only that one can have pending approvals."""
        run_id = await find_id(self._store, self._namespace, "run", named)
        run = await self._store.runs.find(run_id) if current else None
        return run_id if run is None else (await current_run(self._store, run)).id

    async def get(self, approval_id: Ref) -> ApprovalDetail:
        """Return one approval with its history, or raise `NotFound`."""
        record = await self._get(approval_id)
        approval = await self._any_approval(record)
        reason = why_waiting(record.id, approval) if record.state == PENDING else why_ended(record.state, approval)
        return self._shown(
            ApprovalDetail,
            record,
            approval,
            transitions=[transition_record(transition) for transition in await self._store.log.list_transitions(record.id)],
            why=Why(record.id, approval.request.title, record.state, reason.code, reason.text),
        )

    async def find_request(self, approval_id: str) -> tuple[Record, Approval]:
        """Return the record and the document of an approval, or raise `NotFound`."""
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

    async def is_over(self, record: Record, now: int) -> bool:
        """Return whether the time to decide it has passed."""
        expires_at = (await self._any_approval(record)).expires_at
        return expires_at is not None and expires_at <= now

    async def _get(self, approval_id: Ref) -> Record:
        approval_id = await find_id(self._store, self._namespace, ENTITY, approval_id)
        record = await self._store.records.find(approval_id)
        if record is None or record.entity != ENTITY or record.namespace != self._namespace:
            raise not_found("approval", approval_id)
        return record

    async def _find_pending(self, task: Task) -> Record | None:
        which = RecordFilter(ENTITY, namespace=self._namespace, states=(PENDING,), task_id=task.id)
        records = await self._store.records.list_matching(which, 1)
        return records[0] if records else None

    async def _approval(self, record: Record) -> Approval:
        try:
            return convert(Approval, await self._value_store.unpack(record.document))
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

    # changes by people

    async def authorize_approve(self, access: Access, approval_id: str, **_: Any) -> None:
        """A model may not approve its own request."""
        await self._check_own(access, [approval_id])

    async def approve(
        self,
        approval_id: Ref,
        *,
        reason: str | None = None,
        edits: dict[str, Json] | None = None,
        actor: str = "python",
        access: Access | None = None,
    ) -> api.Approval:
        """Approve the request as the actor; see `decide`."""
        groups = () if access is None else access.groups
        return await self.decide(approval_id, APPROVE, actor=actor, reason=reason, edits=edits, groups=groups)

    async def deny(
        self, approval_id: Ref, *, reason: str | None = None, actor: str = "python", access: Access | None = None
    ) -> api.Approval:
        """Deny the request as the actor; see `decide`."""
        return await self.decide(approval_id, DENY, actor=actor, reason=reason, groups=() if access is None else access.groups)

    async def decide(
        self,
        approval_id: Ref,
        decision: str,
        *,
        actor: str,
        reason: str | None = None,
        edits: dict[str, Json] | None = None,
        groups: Sequence[str] = (),
    ) -> api.Approval:
        """Vote `approve` or `deny`; a deciding vote settles the waiting task in the same unit. Returns the approval after it.

        `edits` are merged into the context, if the request allows it; the work receives the approved context. `groups` are the
        actor's groups. Raises `Refused` with the code `may_not_decide`, `already_voted`, `already_decided`, `decided_too_late` or
        `edits_not_allowed` without changing anything.
        """
        check_decision(decision, actor, reason, edits)
        approval_id = await find_id(self._store, self._namespace, ENTITY, approval_id)

        async def attempt() -> api.Approval:
            record = await self._get(approval_id)
            approval = await self._approval(record)
            now = await self._store.now()
            check_vote(record, approval, actor, groups, edits, now)
            task = await self._store.tasks.find(record.task_id or "")
            if task is None or task.state != TaskState.AWAITING_APPROVAL:
                await self.close_orphan(record)
                raise Stale  # the next attempt reads how it ended
            unit = await self._decision(record, task, approval, decision, actor, reason, edits, now)
            await self._committer.commit(unit, self._patience)
            record, approval = await self.find_request(record.id)
            return self._shown(api.Approval, record, approval)

        return await self._committer.transact(attempt, f"decide the approval {approval_id}")

    async def authorize_decide_many(self, access: Access, approval_ids: Sequence[str], decision: str, **_: Any) -> None:
        """One call decides a limited number of approvals, and no model approves its own request."""
        if len(approval_ids) > MANY:
            raise InvalidInput(f"One call may decide at most {MANY} approvals, not {len(approval_ids)}.")
        if decision == APPROVE:
            await self._check_own(access, approval_ids)

    async def _check_own(self, access: Access, approval_ids: Sequence[str]) -> None:
        for approval_id in approval_ids if access.for_model else ():
            try:
                _, approval = await self.find_request(approval_id)
            except NotFound:  # the decision reports it
                continue
            access.check_own(approval.request.requested_by, f"the approval {approval_id}")

    async def decide_many(
        self,
        approval_ids: Sequence[str],
        decision: Literal["approve", "deny"],
        *,
        reason: str | None = None,
        actor: str = "python",
        groups: Sequence[str] = (),
        access: Access | None = None,
    ) -> DecisionResults:
        """Make the same decision on several approvals, each independently; return their results, in the order given."""
        groups = groups if access is None else access.groups
        results = []
        for approval_id in dict.fromkeys(approval_ids):
            try:
                decided = await self.decide(approval_id, decision, actor=actor, reason=reason, groups=groups)
                results.append(DecisionResult(decided.id, decided.state, None, decided.standing))
            except TreadleError as error:
                problem = DecisionError(error.code, str(error))
                results.append(DecisionResult(approval_id, None, problem, f"{approval_id}: {error}"))
        return DecisionResults(results)

    async def _decision(
        self,
        record: Record,
        task: Task,
        approval: Approval,
        decision: str,
        actor: str,
        reason: str | None,
        edits: dict[str, Json] | None,
        now: int,
    ) -> Unit:
        """Return the unit of one vote; a deciding one also settles the task."""
        transition, voted = vote(approval, decision, actor, now, reason, edits)
        data = {"decision": decision, "reason": reason, "edits": edits, "votes": len(voted.votes)}
        data = {name: value for name, value in data.items() if value is not None}
        rows = self._change(record, voted, transition, actor, data)
        if transition == "vote":
            return Unit(rows=rows)
        seen = Seen.of(task)
        if transition == APPROVE:
            return Unit(seen, approved(task, decision_of(record.id, voted, now), actor), rows=rows)
        ending = denied(actor, reason)
        tasks, more = await self._followed(task, ending)
        return Unit(seen, ending, tasks, rows=(*rows, *more))

    # changes by workers

    async def ask(self, task: Task, token: Claim, requeue: Finish | Requeue, request: ApprovalRequest) -> UnitAnswer:
        """Requeue the task until a person has decided; the same unit stores the approval and the task that announces it."""
        now = await self._store.now()
        approval = open_approval(request, now, task.name)
        record, rows = self._open(task, approval)
        data = encode({"approval_id": record.id, "title": request.title})
        requeued = msgspec.structs.replace(requeue, delay=approval.delay(now), data=data)
        tasks = self._notifications(record, approval, "approval.requested")
        return await self._committer.submit(Unit(token, requeued, tasks, rows=rows))

    async def process_due(self, task: Task, token: Claim) -> ProcessedApproval:
        """Perform the due action on the approval that the task waits for: expire, escalate or remind; else keep waiting."""

        async def attempt() -> ProcessedApproval:
            now = await self._store.now()
            record = await self._find_pending(task)
            unit = await self._due(task, token, record, now)
            answer = await self._committer.submit(unit)
            if answer.verdict is Verdict.DEFERRED:
                raise Stale  # someone has voted meanwhile
            assert isinstance(unit.settlement, Finish | Requeue)
            return ProcessedApproval(answer, unit.settlement)

        return await self._committer.transact(attempt, f"process the approval of task {task.id}")

    async def _due(self, task: Task, token: Claim, record: Record | None, now: int) -> Unit:
        if record is None:  # unexpected: one unit stores both, and one ends both
            return await self._ending(
                task, token, Problem("approval_lost", "The approval that the task waited for no longer exists."), ()
            )
        approval = await self._any_approval(record)
        if task.deadline_at is not None and task.deadline_at <= now:
            problem = Problem("deadline_exceeded", "The task's deadline passed while it waited for an approval.")
            return await self._ending(task, token, problem, self._cancel(record, approval, "its task's deadline passed"))
        transition, after = next_action(approval, now)
        if transition is None:
            return Unit(token, requeued(task, "ask", task.state, approval.delay(now), "nothing is due"))
        if transition == "expire":
            return await self._expired(task, token, record, approval, now)
        data: dict[str, Json] = (
            {"to": list(after.request.escalate_to)} if transition == "escalate" else {"reminder": after.reminders}
        )
        event = "approval.escalated" if transition == "escalate" else "approval.reminder"
        return Unit(
            token,
            requeued(task, "ask", task.state, after.delay(now), transition),
            self._notifications(record, after, event),
            rows=self._change(record, after, transition, None, data),
        )

    async def _expired(self, task: Task, token: Claim, record: Record, approval: Approval, now: int) -> Unit:
        """Fail the task, or ask again with a new approval."""
        if approval.request.on_expiry != ASK_AGAIN:
            rows = self._change(record, approval, "expire", None, {})
            tasks = self._notifications(record, approval, "approval.expired")
            return await self._ending(task, token, expired(approval), rows, tasks)
        after = open_approval(approval.request, now, task.name, (record.id, approval))
        new, new_rows = self._open(task, after)
        ended = msgspec.structs.replace(approval, next_id=new.id)
        return Unit(
            token,
            requeued(task, "ask", task.state, after.delay(now), "asked again", new.id),
            self._notifications(new, after, "approval.requested"),
            rows=(*self._change(record, ended, "expire", None, {"next_id": new.id}), *new_rows),
        )

    async def _ending(
        self, task: Task, token: Claim, problem: Problem, rows: tuple[Row, ...], tasks: tuple[NewTask, ...] = ()
    ) -> Unit:
        ending = failure(problem)
        more, followed = await self._followed(task, ending)
        return Unit(token, ending, (*tasks, *more), rows=(*rows, *followed))

    async def _followed(self, task: Task, ending: Finish) -> tuple[tuple[NewTask, ...], tuple[Row, ...]]:
        """Return the tasks and rows that the end of a run's task entails."""
        if task.run_id is None or self._follow is None:
            return (), ()
        return await self._follow(task, ending)

    # changes with the end of tasks and runs

    async def rows_for_end(self, task: Task) -> tuple[Row, ...]:
        """Return the rows for the end of a waiting task by other means than its approval."""
        if task.state != TaskState.AWAITING_APPROVAL:
            return ()
        record = await self._find_pending(task)
        return () if record is None else self._cancel(record, await self._any_approval(record), "its task was ended")

    async def rows_for_run(self, run: Run, why: str = "its run was canceled") -> tuple[Row, ...]:
        """Return the rows that cancel all pending approvals of a run."""
        rows: tuple[Row, ...] = ()
        which = RecordFilter(ENTITY, namespace=self._namespace, states=(PENDING,), run_id=run.id)
        async for record in every_record(self._store, which):
            rows += self._cancel(record, await self._any_approval(record), why)
        return rows

    async def close_orphan(self, record: Record) -> bool:
        """Cancel a pending approval of a task that is gone; return whether it was still pending."""
        rows = self._cancel(record, await self._any_approval(record), "its task no longer waits for it")
        return (await self._committer.submit(Unit(rows=rows), self._patience)).verdict is Verdict.DONE

    # the rows of units

    def _open(self, task: Task, approval: Approval) -> tuple[Record, tuple[Row, ...]]:
        """Return the record of a new approval, and its rows."""
        document, blobs = self._pack(approval, task.root_id)
        record = Record(
            id=self._ids.new_id(),
            namespace=task.namespace,
            entity=ENTITY,
            state=PENDING,
            document=document,
            task_id=task.id,
            run_id=task.run_id,
            root_id=task.root_id,
            trace_id=task.trace_id,
        )
        return record, (PutRecord(record), *blobs)

    def _change(
        self, record: Record, approval: Approval, transition: str, actor: str | None, data: dict[str, Json]
    ) -> tuple[Row, ...]:
        """Return the rows of a transition, guarded by the record's version."""
        document, blobs = self._pack(approval, record.root_id or record.id)
        target = MACHINE.transitions[(PENDING, transition)]
        change = ChangeRecord(
            record.id,
            record.version,
            document,
            transition=transition,
            from_state=PENDING,
            to_state=target,
            ended=target in MACHINE.final,
            actor=actor,
            data=encode(data, "data", DOCUMENT_LIMIT) if data else None,
        )
        return (change, *blobs)

    def _cancel(self, record: Record, approval: Approval, why: str) -> tuple[Row, ...]:
        """Return the rows that cancel a pending approval."""
        return self._change(record, msgspec.structs.replace(approval, reason=why), "cancel", None, {"reason": why})

    def _notifications(self, record: Record, approval: Approval, event: str) -> tuple[NewTask, ...]:
        """Return the task that sends the webhook of an event, if one is configured."""
        if not self._notifies and approval.request.notify is None:
            return ()
        queue = QueueKey(record.namespace, NOTIFY, ENGINE_LIST, NOTIFY)
        payload = self._value_store.encode_text(encode({"event": event, "approval_id": record.id}))
        return (NewTask(id=self._ids.new_id(), queue=queue, payload=payload, root_id=record.root_id, trace_id=record.trace_id),)

    def _pack(self, approval: Approval, root_id: str) -> tuple[str, tuple[PutBlob, ...]]:
        return self._value_store.pack(plain(approval), root_id, "approval", DOCUMENT_LIMIT)
