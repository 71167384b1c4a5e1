"""Approvals: what waits for a person, and deciding it.

Who decides is never said in a request: it is whoever the token (or the session) names. A server takes nobody's word for the
groups that they are in either: where an approval names a group, it is decided at the command line, on the store.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, Protocol

from treadle.api import contract
from treadle.api.contract import ApiRecord, Doc
from treadle.api.tasks import MoveMade, Why
from treadle.api.wire import Instant
from treadle.model.access import Scope
from treadle.model.values import Json

ApprovalId = Annotated[str, Doc("The approval's id", "01935b8e-7c3a-7000-8000-000000000000")]
Reason = Annotated[str | None, Doc("Kept with the approval, and told to the work", "within the budget")]


@dataclass(frozen=True, slots=True)
class Vote(ApiRecord):
    """What one decider said."""

    actor: str
    decision: str
    """`approve` or `deny`."""
    at: Instant
    reason: str | None


@dataclass(frozen=True, slots=True)
class Approval(ApiRecord):
    """A question to people, and what has become of it so far."""

    id: str
    state: str
    """`pending`, `approved`, `denied`, `expired` or `canceled`."""
    title: str
    """What is asked."""
    context: dict[str, Json]
    """What one needs to know to decide, with what was edited."""
    edited_by: str | None
    task_id: str
    """The task that waits for it."""
    task_name: str
    run_id: str | None
    requested_by: str | None
    deciders: list[str]
    """Names and groups of those who may decide now; empty: anyone."""
    quorum: int
    """Votes that approve it."""
    denials: int
    """Votes that deny it."""
    edits: bool
    """Whether who approves may change the context."""
    votes: list[Vote]
    ended_by: str | None
    reason: str | None
    on_expiry: str
    """`fail`, or `ask_again`."""
    requested_at: Instant
    expires_at: Instant | None
    """When the time to decide has passed; null: never."""
    remind_at: Instant | None
    escalate_at: Instant | None
    escalated_at: Instant | None
    reminders: int
    round: int
    """How often it was asked, this time included."""
    previous_id: str | None
    next_id: str | None
    """The approval that was asked for when this one expired."""
    ended_at: Instant | None

    @property
    def standing(self) -> str:
        """How it stands now, in one line."""
        votes = sum(each.decision == "approve" for each in self.votes)
        more = f", {votes} of {self.quorum} votes" if self.state == "pending" else ""
        return f"{self.title} ({self.id}) is {self.state} now{more}"


@dataclass(frozen=True, slots=True)
class ApprovalDetail(Approval):
    """Everything about one approval."""

    moves: list[MoveMade]
    why: Why
    """What it waits for, or how it ended."""


@dataclass(frozen=True, slots=True)
class ApprovalPage(ApiRecord):
    """Approvals, newest first."""

    approvals: list[Approval]
    next_before: str | None
    """Pass it as `before` for the next page; null on the last one."""


@dataclass(frozen=True, slots=True)
class ApprovalCounts(ApiRecord):
    """How many approvals there are in each state."""

    pending: int
    approved: int
    denied: int
    expired: int
    canceled: int


@dataclass(frozen=True, slots=True)
class Mistake(ApiRecord):
    """Why nothing came of one of several."""

    code: str
    """As of the problem that the single call answers with."""
    message: str


@dataclass(frozen=True, slots=True)
class ApprovalAnswer(ApiRecord):
    """What came of one decision of several."""

    id: str
    state: str | None
    """The approval's state now; null where nothing was changed."""
    error: Mistake | None
    text: str
    """The same in one line, for people."""


@dataclass(frozen=True, slots=True)
class ApprovalAnswers(ApiRecord):
    """What came of each, in the order given."""

    answers: list[ApprovalAnswer]


class ApprovalsApi(Protocol):
    """Approvals: questions to people. Who decides is the name of the token that is shown."""

    @contract.get("/approvals")
    async def list(
        self,
        *,
        state: Annotated[Sequence[str], Doc("Only these states; may be repeated; none: those that are pending")] = (),
        every: Annotated[bool, Doc("All states: those that are decided, expired or canceled too")] = False,
        task_id: Annotated[str | None, Doc("Only of this task")] = None,
        run_id: Annotated[str | None, Doc("Only of this run")] = None,
        limit: Annotated[int, Doc("At most so many, up to 1000", 50)] = 50,
        before: Annotated[str | None, Doc("The `next_before` of the page before")] = None,
    ) -> ApprovalPage:
        """Approvals that wait for a decision, newest first, with their context, age and expiry."""

    @contract.get("/approvals/counts")
    async def counts(self) -> ApprovalCounts:
        """How many approvals there are in each state."""

    @contract.get("/approvals/{approval_id}")
    async def get(self, approval_id: ApprovalId) -> ApprovalDetail:
        """Everything about one approval: the question, its context, votes, moves, and what it waits for."""

    @contract.post("/approvals/{approval_id}/approve", Scope.OPERATE)
    async def approve(
        self,
        approval_id: ApprovalId,
        *,
        reason: Reason = None,
        edits: Annotated[
            dict[str, Json] | None, Doc("Laid over the context first, where the request allows it", {"amount": 3})
        ] = None,
    ) -> Approval:
        """Approve as whoever the token names; with the vote that decides, the work that waits goes on at once."""

    @contract.post("/approvals/{approval_id}/deny", Scope.OPERATE)
    async def deny(self, approval_id: ApprovalId, *, reason: Reason = None) -> Approval:
        """Deny as whoever the token names; with the vote that decides, the task that waits fails at once."""

    @contract.post("/approvals/decide", Scope.OPERATE)
    async def decide_many(
        self,
        approval_ids: Annotated[Sequence[str], Doc("The approvals' ids, at most 100", ["01935b8e-7c3a-7000-8000-000000000000"])],
        decision: Annotated[Literal["approve", "deny"], Doc("`approve` or `deny`", "approve")],
        *,
        reason: Reason = None,
    ) -> ApprovalAnswers:
        """The same decision on several approvals, each by itself: one that fails keeps no other from being decided."""
