"""Approvals: asking, deciding, and what is due while nobody decides. Each is one unit: the record and the task that waits.

There is no loop that looks for decisions: deciding settles the waiting task at once, and the task's `wake_at` is the next
reminder, escalation or expiry, whichever comes first. When it comes, a worker takes the task and calls `tend`, not its handler.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import msgspec

from treadle.kernel.approvals.decide import (
    BODY_LIMIT,
    PENDING,
    approved,
    check_decision,
    check_vote,
    parked,
    why_ended,
    why_waiting,
)
from treadle.kernel.queue.decide import Ask, failure
from treadle.kernel.queue.service import PATIENCE, Follow
from treadle.kernel.queue.why import Reason
from treadle.kernel.store.committer import Committer, Stale
from treadle.kernel.store.ports import Store
from treadle.kernel.store.records import ChangeRecord, PutRecord, RecordFilter
from treadle.kernel.store.units import Answer, Finish, Park, PutBlob, Row, Seen, Unit, Verdict
from treadle.kernel.store.value_store import ValueStore
from treadle.model.approvals import (
    APPROVE,
    ASK_AGAIN,
    DENY,
    Approval,
    decision_of,
    next_action,
    open_approval,
    vote,
)
from treadle.model.clock import as_text
from treadle.model.errors import (
    ApprovalNotFound,
    InvalidInput,
    TreadleError,
)
from treadle.model.ids import Ids, parse_id
from treadle.model.names import DEFAULT_NAMESPACE, ENGINE_LIST, NOTIFY, Lane
from treadle.model.outcomes import Problem
from treadle.model.records import Record
from treadle.model.runs import Run
from treadle.model.states import APPROVAL as MACHINE
from treadle.model.states import TaskState
from treadle.model.tasks import Claim, Move, NewTask, Task
from treadle.model.values import Json, encode

ENTITY = MACHINE.entity
PAGE_LIMIT = 1000


@dataclass(frozen=True, slots=True)
class ShownApproval:
    """An approval as people see it."""

    id: str
    state: str
    task_id: str
    run_id: str | None
    approval: Approval
    created_at: int
    ended_at: int | None = None
    moves: tuple[Move, ...] = ()


class Decided(NamedTuple):
    """What came of one decision of several: the approval as it is now, or the error that kept it as it was."""

    id: str
    approval: ShownApproval | None
    error: TreadleError | None = None


Page = list[ShownApproval]
Answers = list[Decided]


class Tended(NamedTuple):
    """What was due, committed."""

    answer: Answer
    settlement: Finish | Park


Tend = Callable[[Task, Claim], Awaitable[Tended]]
"""Does what is due for a task that waits for an approval, and commits it."""


class Approvals:
    """The approvals of one namespace."""

    def __init__(
        self,
        store: Store,
        committer: Committer,
        value_store: ValueStore,
        ids: Ids,
        *,
        namespace: str = DEFAULT_NAMESPACE,
        follow: Follow | None = None,
        notifies: bool = False,
        patience: float = PATIENCE,
    ) -> None:
        self._store = store
        self._committer = committer
        self._value_store = value_store
        self._ids = ids
        self._namespace = namespace
        self._follow = follow
        self._notifies = notifies
        self._patience = patience

    # what people do

    async def list(
        self,
        *,
        states: tuple[str, ...] = (PENDING,),
        task_id: str | None = None,
        run_id: str | None = None,
        before_id: str | None = None,
        limit: int = 50,
    ) -> Page:
        """A page of approvals, newest first, by default those that wait for a decision; `states=()` are all."""
        if unknown := [state for state in states if state not in MACHINE.states]:
            raise InvalidInput(f"Unknown state {unknown[0]!r}; approvals are {', '.join(MACHINE.states)}.")
        if not 0 < limit <= PAGE_LIMIT:
            raise InvalidInput(f"limit must be from 1 to {PAGE_LIMIT}, not {limit}.")
        which = RecordFilter(
            ENTITY,
            namespace=self._namespace,
            states=states,
            task_id=None if task_id is None else parse_id(task_id, "task id"),
            run_id=None if run_id is None else parse_id(run_id, "run id"),
            before_id=None if before_id is None else parse_id(before_id, "cursor"),
        )
        return [await self._shown(record) for record in await self._store.list_records(which, limit)]

    async def show(self, approval_id: str) -> ShownApproval:
        """One approval with its history, or `ApprovalNotFound`."""
        record = await self._get(approval_id)
        shown = await self._shown(record)
        return replace(shown, moves=tuple(await self._store.list_moves(record.id)))

    async def count(self) -> dict[str, int]:
        """How many approvals there are in each state."""
        return dict.fromkeys(MACHINE.states, 0) | await self._store.count_records(self._namespace, ENTITY)

    def explain(self, shown: ShownApproval) -> Reason:
        """What the approval waits for, or how it ended, in one line."""
        approval = shown.approval
        return why_waiting(shown.id, approval) if shown.state == PENDING else why_ended(shown.state, approval)

    async def decide(
        self,
        approval_id: str,
        decision: str,
        *,
        actor: str,
        reason: str | None = None,
        edits: dict[str, Json] | None = None,
        groups: Sequence[str] = (),
    ) -> ShownApproval:
        """Vote `approve` or `deny`; the vote that decides settles the waiting task in the same unit. The approval as it is then.

        `edits` are laid over the context, if the request allows it; the work is given what was approved. `groups` are those
        that the actor is in. Raises `MayNotDecide`, `AlreadyVoted`, `AlreadyDecided`, `DecidedTooLate` or `EditsNotAllowed`;
        nothing is changed then.
        """
        check_decision(decision, actor, reason, edits)

        async def attempt() -> ShownApproval:
            record = await self._get(approval_id)
            approval = await self._approval(record)
            now = await self._store.now()
            check_vote(record, approval, actor, groups, edits, now)
            task = await self._store.find_task(record.task_id or "")
            if task is None or task.state != TaskState.AWAITING_APPROVAL:
                await self._close(record, approval)
                raise Stale  # the next attempt reads how it ended
            unit = await self._decision(record, task, approval, decision, actor, reason, edits, now)
            await self._committer.commit(unit, self._patience)
            return await self.show(record.id)

        return await self._committer.transact(attempt, f"decide the approval {approval_id}")

    async def decide_many(
        self,
        approval_ids: Sequence[str],
        decision: str,
        *,
        actor: str,
        reason: str | None = None,
        groups: Sequence[str] = (),
    ) -> Answers:
        """The same decision on several approvals, each by itself: what came of each, in the order given."""
        answers = []
        for approval_id in dict.fromkeys(approval_ids):
            try:
                done = await self.decide(approval_id, decision, actor=actor, reason=reason, groups=groups)
                answers.append(Decided(done.id, done))
            except TreadleError as error:
                answers.append(Decided(approval_id, None, error))
        return answers

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
        """The unit of one vote; one that decides has the end of the waiting in it."""
        move, voted = vote(approval, decision, actor, now, reason, edits)
        data = {"decision": decision, "reason": reason, "edits": edits, "votes": len(voted.votes)}
        data = {name: value for name, value in data.items() if value is not None}
        rows = self._change(record, voted, move, actor, data)
        if move == "vote":
            return Unit(rows=rows)
        seen = Seen(task.id, task.version, task.claim_version)
        if move == APPROVE:
            return Unit(seen, approved(task, decision_of(record.id, voted, now), actor), rows=rows)
        said = f"approval denied by {actor}: {reason}" if reason else f"approval denied by {actor}"
        ending = msgspec.structs.replace(failure(Problem("approval_denied", said)), move=DENY, actor=actor)
        tasks, more = await self._followed(task, ending)
        return Unit(seen, ending, tasks, rows=(*rows, *more))

    # what workers do

    async def ask(self, task: Task, token: Claim, park: Ask) -> Answer:
        """Park the task until a person has decided: the approval, and the task that tells of it, are stored in the same unit."""
        if park.request is None:
            raise InvalidInput("There is no request to ask with.")
        now = await self._store.now()
        approval = open_approval(park.request, now, task.name)
        record, rows = self._open(task, approval)
        parked = Park(
            park.move,
            park.state,
            park.attempt,
            park.failures,
            park.takeovers,
            park.hold,
            delay=approval.delay(now),
            checkpoint=park.checkpoint,
            data=encode({"approval_id": record.id, "title": park.request.title}),
        )
        tasks = self._notifications(record, approval, "approval.requested")
        return await self._committer.submit(Unit(token, parked, tasks, rows=rows))

    async def tend(self, task: Task, token: Claim) -> Tended:
        """Do what is due on the approval that the task waits for: expire, escalate or remind; else wait on."""

        async def attempt() -> Tended:
            now = await self._store.now()
            record = await self._find_pending(task)
            unit = await self._due(task, token, record, now)
            answer = await self._committer.submit(unit)
            if answer.verdict is Verdict.DEFERRED:
                raise Stale  # someone has voted meanwhile
            assert isinstance(unit.settlement, Finish | Park)
            return Tended(answer, unit.settlement)

        return await self._committer.transact(attempt, f"process the approval of task {task.id}")

    async def _due(self, task: Task, token: Claim, record: Record | None, now: int) -> Unit:
        if record is None:  # both are stored in one unit, and end in one
            return await self._ending(task, token, Problem("approval_lost", "The approval that the task waited for is gone."), ())
        approval = await self._approval(record)
        if task.deadline_at is not None and task.deadline_at <= now:
            problem = Problem("deadline_exceeded", "The task's deadline passed while it waited for an approval.")
            return await self._ending(task, token, problem, self._canceled(record, approval, "its task's deadline passed"))
        move, after = next_action(approval, now)
        if move is None:
            return Unit(token, parked(task, "ask", task.state, approval.delay(now), "nothing is due"))
        if move == "expire":
            return await self._expired(task, token, record, approval, now)
        data: dict[str, Json] = {"to": list(after.request.escalate_to)} if move == "escalate" else {"reminder": after.reminders}
        event = "approval.escalated" if move == "escalate" else "approval.reminder"
        return Unit(
            token,
            parked(task, "ask", task.state, after.delay(now), move),
            self._notifications(record, after, event),
            rows=self._change(record, after, move, None, data),
        )

    async def _expired(self, task: Task, token: Claim, record: Record, approval: Approval, now: int) -> Unit:
        """Its time has passed: the task fails, or the question is asked again by a new approval."""
        if approval.request.on_expiry != ASK_AGAIN:
            said = f"approval expired: nobody decided {approval.request.title!r} before {as_text(approval.expires_at)}"
            rows = self._change(record, approval, "expire", None, {})
            tasks = self._notifications(record, approval, "approval.expired")
            return await self._ending(task, token, Problem("approval_expired", said), rows, tasks)
        after = open_approval(approval.request, now, task.name, (record.id, approval))
        new, made = self._open(task, after)
        ended = msgspec.structs.replace(approval, next_id=new.id)
        return Unit(
            token,
            parked(task, "ask", task.state, after.delay(now), "asked again", new.id),
            self._notifications(new, after, "approval.requested"),
            rows=(*self._change(record, ended, "expire", None, {"next_id": new.id}), *made),
        )

    async def _ending(
        self, task: Task, token: Claim, problem: Problem, rows: tuple[Row, ...], tasks: tuple[NewTask, ...] = ()
    ) -> Unit:
        ending = failure(problem)
        more, followed = await self._followed(task, ending)
        return Unit(token, ending, (*tasks, *more), rows=(*rows, *followed))

    async def _followed(self, task: Task, ending: Finish) -> tuple[tuple[NewTask, ...], tuple[Row, ...]]:
        """What is stored with the end of a run's task."""
        if task.run_id is None or self._follow is None:
            return (), ()
        return await self._follow(task, ending)

    # what goes with the end of tasks and runs

    async def rows_for_end(self, task: Task) -> tuple[Row, ...]:
        """What is stored with the end of a task that waited for an approval, and was not ended by it."""
        if task.state != TaskState.AWAITING_APPROVAL:
            return ()
        record = await self._find_pending(task)
        return () if record is None else self._canceled(record, await self._approval(record), "its task was ended")

    async def rows_for_run(self, run: Run) -> tuple[Row, ...]:
        """What is stored with the cancel of a run: none of its approvals is pending any more."""
        rows: tuple[Row, ...] = ()
        which = RecordFilter(ENTITY, namespace=self._namespace, states=(PENDING,), run_id=run.id)
        while page := await self._store.list_records(which, PAGE_LIMIT):
            for record in page:
                rows += self._canceled(record, await self._approval(record), "its run was canceled")
            which = replace(which, before_id=page[-1].id)
        return rows

    async def find_orphans(self, limit: int = PAGE_LIMIT) -> tuple[Record, ...]:
        """Pending approvals whose task does not wait for them any more."""
        orphans = []
        which = RecordFilter(ENTITY, namespace=self._namespace, states=(PENDING,))
        while page := await self._store.list_records(which, limit):
            for record in page:
                task = await self._store.find_task(record.task_id or "")
                if task is None or task.state != TaskState.AWAITING_APPROVAL:
                    orphans.append(record)
            which = replace(which, before_id=page[-1].id)
        return tuple(orphans)

    async def is_over(self, record: Record, now: int) -> bool:
        """Whether the time to decide it has passed."""
        expires_at = (await self._approval(record)).expires_at
        return expires_at is not None and expires_at <= now

    async def close_orphan(self, record: Record) -> bool:
        """Cancel a pending approval whose task is gone; whether it still was."""
        return await self._close(record, await self._approval(record))

    async def _close(self, record: Record, approval: Approval) -> bool:
        rows = self._canceled(record, approval, "its task does not wait for it any more")
        return (await self._committer.submit(Unit(rows=rows), self._patience)).verdict is Verdict.DONE

    # why

    async def why(self, task: Task) -> Reason | None:
        """What a task that awaits an approval waits for, in one line."""
        record = await self._find_pending(task)
        return None if record is None else why_waiting(record.id, await self._approval(record))

    # records

    async def _get(self, approval_id: str) -> Record:
        record = await self._store.find_record(parse_id(approval_id, "approval id"))
        if record is None or record.entity != ENTITY or record.namespace != self._namespace:
            raise ApprovalNotFound(approval_id)
        return record

    async def _find_pending(self, task: Task) -> Record | None:
        which = RecordFilter(ENTITY, namespace=self._namespace, states=(PENDING,), task_id=task.id)
        found = await self._store.list_records(which, 1)
        return found[0] if found else None

    async def _approval(self, record: Record) -> Approval:
        return msgspec.convert(await self._value_store.unpack(record.body), Approval)

    async def _shown(self, record: Record) -> ShownApproval:
        return ShownApproval(
            id=record.id,
            state=record.state,
            task_id=record.task_id or "",
            run_id=record.run_id,
            approval=await self._approval(record),
            created_at=record.created_at,
            ended_at=record.ended_at,
        )

    def _open(self, task: Task, approval: Approval) -> tuple[Record, tuple[Row, ...]]:
        body, blobs = self._pack(approval, task.root_id)
        record = Record(
            id=self._ids.new_id(),
            namespace=task.namespace,
            entity=ENTITY,
            state=PENDING,
            body=body,
            task_id=task.id,
            run_id=task.run_id,
            root_id=task.root_id,
            trace_id=task.trace_id,
        )
        return record, (PutRecord(record), *blobs)

    def _change(
        self, record: Record, approval: Approval, move: str, actor: str | None, data: dict[str, Json]
    ) -> tuple[ChangeRecord | PutBlob, ...]:
        body, blobs = self._pack(approval, record.root_id or record.id)
        target = MACHINE.moves[(PENDING, move)]
        change = ChangeRecord(
            record.id,
            record.version,
            body,
            move=move,
            from_state=PENDING,
            to_state=target,
            ended=target in MACHINE.final,
            actor=actor,
            data=encode(data, "data", BODY_LIMIT) if data else None,
        )
        return (change, *blobs)

    def _canceled(self, record: Record, approval: Approval, why: str) -> tuple[Row, ...]:
        return self._change(record, msgspec.structs.replace(approval, reason=why), "cancel", None, {"reason": why})

    def _pack(self, approval: Approval, root_id: str) -> tuple[str, tuple[PutBlob, ...]]:
        return self._value_store.pack(msgspec.to_builtins(approval), root_id, "approval", BODY_LIMIT)

    def _notifications(self, record: Record, approval: Approval, event: str) -> tuple[NewTask, ...]:
        """The task that tells the outside, if there is anybody to tell."""
        if not self._notifies and approval.request.notify is None:
            return ()
        lane = Lane(record.namespace, NOTIFY, ENGINE_LIST, NOTIFY)
        payload = self._value_store.seal(encode({"event": event, "approval_id": record.id}))
        return (NewTask(id=self._ids.new_id(), lane=lane, payload=payload, root_id=record.root_id, trace_id=record.trace_id),)
