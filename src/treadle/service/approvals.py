"""Calls about approvals, on an engine. The decider is the caller: no call takes a name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypeVar

from treadle.api.approvals import (
    Approval,
    ApprovalCounts,
    ApprovalDetail,
    ApprovalPage,
    ApprovalsApi,
    DecisionError,
    DecisionResult,
    DecisionResults,
)
from treadle.api.tasks import Why
from treadle.api.wire import record_of
from treadle.kernel.approvals.records import PENDING, Decided, ShownApproval
from treadle.kernel.reads.records import move_record
from treadle.model.approvals import APPROVE, DENY
from treadle.model.errors import InvalidInput, NotFound
from treadle.model.values import Json
from treadle.service.group import Group

MANY = 100
"""Maximum number of approvals per call."""

A = TypeVar("A", bound=Approval)


class Approvals(Group, ApprovalsApi):
    """See `ApprovalsApi`."""

    async def list(
        self,
        *,
        state: Sequence[str] = (),
        every: bool = False,
        task_id: str | None = None,
        run_id: str | None = None,
        limit: int = 50,
        before: str | None = None,
    ) -> ApprovalPage:
        states = () if every else tuple(state) or (PENDING,)
        found = await self.engine.approvals.list(states=states, task_id=task_id, run_id=run_id, before_id=before, limit=limit)
        return ApprovalPage([_record(Approval, each) for each in found], found[-1].id if len(found) == limit else None)

    async def counts(self) -> ApprovalCounts:
        return ApprovalCounts(**await self.engine.approvals.count())

    async def get(self, approval_id: str) -> ApprovalDetail:
        shown = await self.engine.approvals.show(approval_id)
        reason = self.engine.approvals.explain(shown)
        return _record(
            ApprovalDetail,
            shown,
            moves=[move_record(move) for move in shown.moves],
            why=Why(shown.id, shown.approval.request.title, shown.state, reason.code, reason.text),
        )

    async def approve(self, approval_id: str, *, reason: str | None = None, edits: dict[str, Json] | None = None) -> Approval:
        return await self._decide(approval_id, APPROVE, reason, edits)

    async def deny(self, approval_id: str, *, reason: str | None = None) -> Approval:
        return await self._decide(approval_id, DENY, reason, None)

    async def _decide(self, approval_id: str, decision: str, reason: str | None, edits: dict[str, Json] | None) -> Approval:
        await self._check_own([approval_id], decision)
        shown = await self.engine.approvals.decide(
            approval_id, decision, actor=self.actor, reason=reason, edits=edits, groups=self.access.groups
        )
        return _record(Approval, shown)

    async def decide_many(
        self, approval_ids: Sequence[str], decision: Literal["approve", "deny"], *, reason: str | None = None
    ) -> DecisionResults:
        if len(approval_ids) > MANY:
            raise InvalidInput(f"One call may decide at most {MANY} approvals, not {len(approval_ids)}.")
        await self._check_own(approval_ids, decision)
        answers = await self.engine.approvals.decide_many(
            approval_ids, decision, actor=self.actor, reason=reason, groups=self.access.groups
        )
        return DecisionResults([_answer(each) for each in answers])

    async def _check_own(self, approval_ids: Sequence[str], decision: str) -> None:
        """Raise `Refused` if a model is about to approve its own request."""
        for each in approval_ids if self.access.for_model and decision == APPROVE else ():
            try:
                found = await self.engine.approvals.show(each)
            except NotFound:  # the decision reports it
                continue
            self.access.check_own(found.approval.request.requested_by, f"the approval {each}")


def _record(kind: type[A], shown: ShownApproval, **more: Any) -> A:
    return record_of(kind, shown, shown.approval, shown.approval.request, **more)


def _answer(decided: Decided) -> DecisionResult:
    if decided.approval is None:
        assert decided.error is not None
        mistake = DecisionError(decided.error.code, str(decided.error))
        return DecisionResult(decided.id, None, mistake, f"{decided.id}: {decided.error}")
    return DecisionResult(decided.id, decided.approval.state, None, _record(Approval, decided.approval).standing)
