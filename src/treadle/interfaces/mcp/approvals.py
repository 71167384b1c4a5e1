"""Tools for approvals: list, show, and decide as the caller."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from treadle.api.approvals import Approval, ApprovalId, Reason
from treadle.api.contract import ApiRecord, Doc, record
from treadle.api.wire import Instant, record_of
from treadle.interfaces.mcp.request_context import RequestContext
from treadle.interfaces.mcp.tool import tool
from treadle.interfaces.mcp.truncate import PAGE, Before, Limit, Whole, page_size, shown
from treadle.model.access import Scope
from treadle.model.errors import InvalidInput
from treadle.model.values import Json

StateWord = Literal["pending", "approved", "denied", "expired", "canceled"]


@record
class Question(ApiRecord):
    """Summary of an approval."""

    id: str
    state: str
    """`pending`, `approved`, `denied`, `expired` or `canceled`."""
    title: str
    """The question."""
    context: Json
    """Information for the decision."""
    deciders: list[str]
    """Names of the current deciders; empty: anyone."""
    edits: bool
    """Whether an approver may edit the context."""
    standing: str
    """Its state, in one line."""
    run_id: str | None
    task_id: str
    requested_by: str | None
    requested_at: Instant
    expires_at: Instant | None
    ended_by: str | None
    reason: str | None


@record
class Questions(ApiRecord):
    """Approvals, newest first."""

    approvals: list[Question]
    next_before: str | None
    """Pass it as `before` for the next page; null on the last page."""


def question(approval: Approval, whole: bool = False) -> Question:
    """The summary of an approval."""
    return record_of(Question, approval, context=shown(approval.context, whole))


@tool()
async def approval_list(
    context: RequestContext,
    state: Annotated[Sequence[StateWord], Doc("Only these states; default: `pending`")] = (),
    run_id: Annotated[str | None, Doc("Only this run")] = None,
    every: Annotated[bool, Doc("All states, including decided, expired and canceled")] = False,
    limit: Limit = PAGE,
    before: Before = None,
) -> Questions:
    """List pending approvals, newest first, with the information needed to decide."""
    page = await context.api.approvals.list(state=state, run_id=run_id, every=every, limit=page_size(limit), before=before)
    return Questions([question(each) for each in page.approvals], page.next_before)


@tool()
async def approval_show(context: RequestContext, approval_id: ApprovalId, whole: Whole = False) -> Question:
    """Show one approval: the question, its context and its state."""
    return question(await context.api.approvals.get(approval_id), whole)


@tool(Scope.APPROVE)
async def approval_decide(
    context: RequestContext,
    approval_id: ApprovalId,
    decision: Annotated[Literal["approve", "deny"], Doc("`approve` or `deny`", "approve")],
    reason: Reason = None,
    edits: Annotated[
        dict[str, Json] | None, Doc("Changes to the context, if the request allows them; only with `approve`", {"amount": 3})
    ] = None,
) -> Question:
    """Approve or deny as the caller; the deciding vote resumes or fails the waiting work immediately.

    A person decides: ask the user first, unless the user has told you to decide.
    """
    if decision == "approve":
        return question(await context.api.approvals.approve(approval_id, reason=reason, edits=edits))
    if edits is not None:
        raise InvalidInput("Only an approval can edit the context: omit `edits` to deny.")
    return question(await context.api.approvals.deny(approval_id, reason=reason))


TOOLS = (approval_list, approval_show, approval_decide)
