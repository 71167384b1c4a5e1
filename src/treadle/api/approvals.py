"""Approvals: questions that wait for people, and their decisions.

The decider is the caller that the token or session names, never a field of a request. A server does not accept a caller's claim to
be in a group: an approval that names a group is decided on the command line, on the store.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal, Protocol

from treadle.api import contract
from treadle.api.contract import ApiRecord, Doc, Lookup, Page
from treadle.api.tasks import TRANSITIONS, TransitionRecord, Why
from treadle.api.view import Column, View
from treadle.api.wire import Instant
from treadle.model.access import Scope
from treadle.model.names import APPROVAL
from treadle.model.values import Json

ApprovalId = Annotated[str, Doc("The approval's id", "01935b8e-7c3a-7000-8000-000000000000")]
Reason = Annotated[str | None, Doc("Stored with the approval and passed to the work", "within the budget")]


class Vote(ApiRecord, frozen=True):
    """The vote of one decider."""

    actor: str
    decision: str
    """`approve` or `deny`."""
    at: Instant
    reason: str | None


class Approval(ApiRecord, frozen=True):
    """A question to people and its state."""

    id: str
    state: str
    """`pending`, `approved`, `denied`, `expired` or `canceled`."""
    title: str
    """The question."""
    about: str
    """Its context in one line, up to 120 characters; without one, the payload of the task that asks."""
    context: dict[str, Json]
    """Information for the decision, including edits."""
    edited_by: str | None
    task_id: str
    """The task that waits for it."""
    task_name: str
    run_id: str | None
    requested_by: str | None
    deciders: list[str]
    """Names and groups of current deciders; empty: anyone."""
    quorum: int
    """Votes needed to approve it."""
    denials: int
    """Votes needed to deny it."""
    edits: bool
    """Whether an approver may edit the context."""
    votes: list[Vote]
    ended_by: str | None
    reason: str | None
    on_expiry: str
    """`fail`, or `ask_again`."""
    requested_at: Instant
    expires_at: Instant | None
    """End of the time to decide; null: never."""
    remind_at: Instant | None
    escalate_at: Instant | None
    escalated_at: Instant | None
    reminders: int
    round: int
    """Number of times it was requested, including this one."""
    previous_id: str | None
    next_id: str | None
    """The approval that was requested when this one expired."""
    ended_at: Instant | None

    @property
    def standing(self) -> str:
        """Its state, in one line."""
        votes = sum(vote.decision == "approve" for vote in self.votes)
        more = f", {votes} of {self.quorum} votes" if self.state == "pending" else ""
        return f"{self.title} ({self.id}) is {self.state} now{more}"


class ApprovalDetail(Approval, frozen=True):
    """Everything about one approval."""

    transitions: list[TransitionRecord]
    why: Why
    """The pending condition, or how it ended."""


class ApprovalPage(Page, frozen=True):
    """Approvals, newest first."""

    approvals: list[Approval]


class ApprovalCounts(ApiRecord, frozen=True):
    """Number of approvals by state."""

    pending: int
    approved: int
    denied: int
    expired: int
    canceled: int


class DecisionError(ApiRecord, frozen=True):
    """The error of one of several decisions."""

    code: str
    """The code of the problem that the single call returns."""
    message: str


class DecisionResult(ApiRecord, frozen=True):
    """The result of one of several decisions."""

    id: str
    state: str | None
    """The approval's current state; null if nothing was changed."""
    error: DecisionError | None
    text: str
    """The result in one line."""


class DecisionResults(ApiRecord, frozen=True):
    """The results, in the order given."""

    answers: list[DecisionResult]


def _of(approval: Approval) -> str:
    return f"run {approval.run_id}" if approval.task_name == APPROVAL else approval.task_name


def _deciders(approval: Approval) -> str:
    return ", ".join(approval.deciders) or "anyone"


def _votes(approval: Approval) -> str:
    return f"{sum(vote.decision == 'approve' for vote in approval.votes)}/{approval.quorum}"


_BRIEF = (
    "id",
    "state",
    "title",
    Column("context", kind="json"),
    "deciders",
    "edits",
    "standing",
    "run_id",
    "task_id",
    "requested_by",
    "requested_at",
    "expires_at",
    "ended_by",
    "reason",
)
View(
    Approval,
    columns=(
        "id",
        "state",
        Column("question", "title", limit=60, link="/approvals/{id}"),
        Column("about", spare=True, limit=40),
        Column("of", _of, spare=True),
        Column("deciders", _deciders, spare=True, limit=30),
        Column("votes", _votes, spare=True),
        Column("asked", "requested_at", spare=True),
        "?expires_at",
    ),
    brief=_BRIEF,
    empty="No approvals.",
    changed="{standing}",
)
View(
    ApprovalDetail,
    title="{title}",
    facts=(
        "state",
        Column("task", lambda approval: f"{approval.task_name} {approval.task_id}"),
        "run_id",
        Column("asked", "requested_at"),
        Column("asked by", "requested_by"),
        Column("may decide", _deciders),
        Column("needs", lambda approval: f"{approval.quorum} to approve, {approval.denials} to deny"),
        Column("may be edited", "edits"),
        "expires_at",
        Column("on expiry", lambda approval: "it is asked again" if approval.on_expiry == "ask_again" else None),
        Column("next reminder", "remind_at"),
        Column("next escalation", "escalate_at"),
        "ended_by",
        "reason",
        "edited_by",
        Column("asked before as", "previous_id"),
        Column("asked again as", "next_id"),
        Column("context", kind="json"),
        Column("history", "transitions", rows=TRANSITIONS),
    ),
    brief=_BRIEF,
)


class ApprovalsApi(Lookup[ApprovalDetail], Protocol):
    """Approvals: questions to people. The decider is the name of the caller's token."""

    @contract.get("/approvals")
    async def list(
        self,
        *,
        state: Annotated[Sequence[str], Doc("Only these states; may be repeated; default: `pending`")] = (),
        every: Annotated[bool, Doc("All states, including decided, expired and canceled")] = False,
        task_id: Annotated[str | None, Doc("Only this task")] = None,
        run_id: Annotated[str | None, Doc("Only this run")] = None,
        limit: Annotated[int, Doc("Page size, up to 1000", 50)] = 50,
        before: Annotated[str | None, Doc("`next_before` of the previous page")] = None,
    ) -> ApprovalPage:
        """Pending approvals, newest first, with their context, age and expiry."""

    @contract.get("/approvals/counts")
    async def counts(self) -> ApprovalCounts:
        """Number of approvals by state."""

    @contract.get("/approvals/{approval_id}")
    async def get(self, approval_id: ApprovalId) -> ApprovalDetail:
        """One approval: the question, its context, votes, history, and the pending condition."""

    @contract.post("/approvals/{approval_id}/approve", Scope.APPROVE)
    async def approve(
        self,
        approval_id: ApprovalId,
        *,
        reason: Reason = None,
        edits: Annotated[dict[str, Json] | None, Doc("Changes to the context, if the request allows them", {"amount": 3})] = None,
    ) -> Approval:
        """Approve as the caller; the deciding vote resumes the waiting work immediately."""

    @contract.post("/approvals/{approval_id}/deny", Scope.APPROVE)
    async def deny(self, approval_id: ApprovalId, *, reason: Reason = None) -> Approval:
        """Deny as the caller; the deciding vote fails the waiting task immediately."""

    @contract.post("/approvals/decide", Scope.APPROVE)
    async def decide_many(
        self,
        approval_ids: Annotated[Sequence[str], Doc("Ids of the approvals, at most 100", ["01935b8e-7c3a-7000-8000-000000000000"])],
        decision: Annotated[Literal["approve", "deny"], Doc("`approve` or `deny`", "approve")],
        *,
        reason: Reason = None,
    ) -> DecisionResults:
        """Apply one decision to several approvals independently; one failure does not affect the others."""
