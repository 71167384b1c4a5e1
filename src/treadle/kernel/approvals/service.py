"""Approvals: asking, deciding, and the actions due while nobody decides. Each is one unit: the record and the waiting task.

No loop polls for decisions: deciding settles the waiting task immediately, and the task's `wake_at` is the next reminder,
escalation or expiry. When it is due, a worker claims the task and calls `tend` instead of its handler.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Literal, NamedTuple

import msgspec

from treadle.api import approvals as api
from treadle.api.approvals import DecisionError, DecisionResult, DecisionResults
from treadle.kernel.approvals.decide import approved, check_decision, check_vote, denied, expired, parked
from treadle.kernel.approvals.reads import ApprovalReads
from treadle.kernel.approvals.records import ENTITY, PENDING, ApprovalRows
from treadle.kernel.queue.decide import Ask, failure
from treadle.kernel.queue.service import PATIENCE, Follow
from treadle.kernel.store.committer import Committer, Stale
from treadle.kernel.store.lookups import every_record, find_id
from treadle.kernel.store.ports import Store
from treadle.kernel.store.records import RecordFilter
from treadle.kernel.store.units import Answer, Finish, Park, Row, Seen, Unit, Verdict
from treadle.kernel.store.value_store import ValueStore
from treadle.model.access import Access
from treadle.model.approvals import APPROVE, ASK_AGAIN, DENY, Approval, decision_of, next_action, open_approval, vote
from treadle.model.errors import InvalidInput, NotFound, TreadleError
from treadle.model.ids import Ids, Ref
from treadle.model.names import DEFAULT_NAMESPACE
from treadle.model.outcomes import Problem
from treadle.model.records import Record
from treadle.model.runs import Run
from treadle.model.states import TaskState
from treadle.model.tasks import Claim, NewTask, Task
from treadle.model.values import Json, encode

MANY = 100
"""Maximum number of approvals per call from outside."""


class Tended(NamedTuple):
    """The committed action, and the verdict on it."""

    answer: Answer
    settlement: Finish | Park


Tend = Callable[[Task, Claim], Awaitable[Tended]]
"""Performs and commits the action that is due for a task that waits for an approval."""


class Approvals(ApprovalReads):
    """The approvals of one namespace: their reads, and every change of them."""

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
        super().__init__(store, value_store, namespace)
        self._committer = committer
        self._rows = ApprovalRows(value_store, ids, notifies=notifies)
        self._follow = follow
        self._patience = patience

    # changes by people

    async def permit_approve(self, access: Access, approval_id: str, **_: Any) -> None:
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
        actor's groups. Raises `MayNotDecide`, `AlreadyVoted`, `AlreadyDecided`, `DecidedTooLate` or `EditsNotAllowed` without
        changing anything.
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
                await self._close(record, approval)
                raise Stale  # the next attempt reads how it ended
            unit = await self._decision(record, task, approval, decision, actor, reason, edits, now)
            await self._committer.commit(unit, self._patience)
            record, approval = await self.find_request(record.id)
            return self._shown(api.Approval, record, approval)

        return await self._committer.transact(attempt, f"decide the approval {approval_id}")

    async def permit_decide_many(self, access: Access, approval_ids: Sequence[str], decision: str, **_: Any) -> None:
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
        move, voted = vote(approval, decision, actor, now, reason, edits)
        data = {"decision": decision, "reason": reason, "edits": edits, "votes": len(voted.votes)}
        data = {name: value for name, value in data.items() if value is not None}
        rows = self._rows.change(record, voted, move, actor, data)
        if move == "vote":
            return Unit(rows=rows)
        seen = Seen.of(task)
        if move == APPROVE:
            return Unit(seen, approved(task, decision_of(record.id, voted, now), actor), rows=rows)
        ending = denied(actor, reason)
        tasks, more = await self._followed(task, ending)
        return Unit(seen, ending, tasks, rows=(*rows, *more))

    # changes by workers

    async def ask(self, task: Task, token: Claim, park: Ask) -> Answer:
        """Park the task until a person has decided; the same unit stores the approval and the task that announces it."""
        if park.request is None:
            raise InvalidInput("The outcome has no approval request.")
        now = await self._store.now()
        approval = open_approval(park.request, now, task.name)
        record, rows = self._rows.open(task, approval)
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
        tasks = self._rows.notifications(record, approval, "approval.requested")
        return await self._committer.submit(Unit(token, parked, tasks, rows=rows))

    async def tend(self, task: Task, token: Claim) -> Tended:
        """Perform the due action on the approval that the task waits for: expire, escalate or remind; else keep waiting."""

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
        if record is None:  # unexpected: one unit stores both, and one ends both
            return await self._ending(
                task, token, Problem("approval_lost", "The approval that the task waited for no longer exists."), ()
            )
        approval = await self._any_approval(record)
        if task.deadline_at is not None and task.deadline_at <= now:
            problem = Problem("deadline_exceeded", "The task's deadline passed while it waited for an approval.")
            return await self._ending(task, token, problem, self._rows.cancel(record, approval, "its task's deadline passed"))
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
            self._rows.notifications(record, after, event),
            rows=self._rows.change(record, after, move, None, data),
        )

    async def _expired(self, task: Task, token: Claim, record: Record, approval: Approval, now: int) -> Unit:
        """Fail the task, or ask again with a new approval."""
        if approval.request.on_expiry != ASK_AGAIN:
            rows = self._rows.change(record, approval, "expire", None, {})
            tasks = self._rows.notifications(record, approval, "approval.expired")
            return await self._ending(task, token, expired(approval), rows, tasks)
        after = open_approval(approval.request, now, task.name, (record.id, approval))
        new, made = self._rows.open(task, after)
        ended = msgspec.structs.replace(approval, next_id=new.id)
        return Unit(
            token,
            parked(task, "ask", task.state, after.delay(now), "asked again", new.id),
            self._rows.notifications(new, after, "approval.requested"),
            rows=(*self._rows.change(record, ended, "expire", None, {"next_id": new.id}), *made),
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
        return () if record is None else self._rows.cancel(record, await self._any_approval(record), "its task was ended")

    async def rows_for_run(self, run: Run, why: str = "its run was canceled") -> tuple[Row, ...]:
        """Return the rows that cancel all pending approvals of a run."""
        rows: tuple[Row, ...] = ()
        which = RecordFilter(ENTITY, namespace=self._namespace, states=(PENDING,), run_id=run.id)
        async for record in every_record(self._store, which):
            rows += self._rows.cancel(record, await self._any_approval(record), why)
        return rows

    async def close_orphan(self, record: Record) -> bool:
        """Cancel a pending approval of a task that is gone; return whether it was still pending."""
        return await self._close(record, await self._any_approval(record))

    async def _close(self, record: Record, approval: Approval) -> bool:
        rows = self._rows.cancel(record, approval, "its task no longer waits for it")
        return (await self._committer.submit(Unit(rows=rows), self._patience)).verdict is Verdict.DONE
