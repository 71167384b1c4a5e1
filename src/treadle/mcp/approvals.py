"""Tools for approvals: what waits for a decision, and deciding it as whoever the token names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from treadle.api.approvals import Approval, ApprovalId, Reason
from treadle.api.contract import ApiRecord, Doc
from treadle.api.wire import Instant
from treadle.mcp.request_context import RequestContext
from treadle.mcp.tool import tool
from treadle.mcp.truncate import PAGE, Before, Limit, Whole, page_size, shown
from treadle.model.access import Scope
from treadle.model.errors import InvalidInput
from treadle.model.values import Json


@dataclass(frozen=True, slots=True)
class Question(ApiRecord):
    """An approval in brief."""

    id: str
    state: str
    """`pending`, `approved`, `denied`, `expired` or `canceled`."""
    title: str
    """What is asked."""
    context: Json
    """What one needs to know to decide."""
    deciders: list[str]
    """Names of those who may decide now; empty: anyone."""
    edits: bool
    """Whether who approves may change the context."""
    standing: str
    """How it stands, in one line."""
    run_id: str | None
    task_id: str
    requested_by: str | None
    requested_at: Instant
    expires_at: Instant | None
    ended_by: str | None
    reason: str | None


@dataclass(frozen=True, slots=True)
class Questions(ApiRecord):
    """Approvals, newest first."""

    approvals: list[Question]
    next_before: str | None
    """Pass it as `before` for the next page; null on the last one."""


def question(approval: Approval, whole: bool = False) -> Question:
    """The approval in brief."""
    return Question(
        approval.id,
        approval.state,
        approval.title,
        shown(approval.context, whole),
        approval.deciders,
        approval.edits,
        approval.standing,
        approval.run_id,
        approval.task_id,
        approval.requested_by,
        approval.requested_at,
        approval.expires_at,
        approval.ended_by,
        approval.reason,
    )


@tool()
async def approval_list(
    desk: RequestContext,
    state: Annotated[Sequence[str], Doc("Only these states; none: those that are pending")] = (),
    run_id: Annotated[str | None, Doc("Only of this run")] = None,
    every: Annotated[bool, Doc("All states: those that are decided, expired or canceled too")] = False,
    limit: Limit = PAGE,
    before: Before = None,
) -> Questions:
    """Approvals that wait for a decision, newest first, with what one needs to know to decide."""
    page = await desk.api.approvals.list(state=state, run_id=run_id, every=every, limit=page_size(limit), before=before)
    return Questions([question(each) for each in page.approvals], page.next_before)


@tool()
async def approval_show(desk: RequestContext, approval_id: ApprovalId, whole: Whole = False) -> Question:
    """One approval: the question, its context, and how it stands."""
    return question(await desk.api.approvals.get(approval_id), whole)


@tool(Scope.OPERATE)
async def approval_decide(
    desk: RequestContext,
    approval_id: ApprovalId,
    decision: Annotated[Literal["approve", "deny"], Doc("`approve` or `deny`", "approve")],
    reason: Reason = None,
    edits: Annotated[
        dict[str, Json] | None, Doc("Laid over the context first, where the request allows it; only to approve", {"amount": 3})
    ] = None,
) -> Question:
    """Approve or deny, as whoever this connection's token names; with the vote that decides, the work goes on (or fails) at once.

    A decision is a person's: ask the one you work for, unless they told you to decide.
    """
    if decision == "approve":
        return question(await desk.api.approvals.approve(approval_id, reason=reason, edits=edits))
    if edits is not None:
        raise InvalidInput("Only who approves can edit the context: leave `edits` out to deny.")
    return question(await desk.api.approvals.deny(approval_id, reason=reason))


TOOLS = (approval_list, approval_show, approval_decide)
