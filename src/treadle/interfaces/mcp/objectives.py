"""Tools for objectives: list, show, add, approve, block, unblock."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from treadle.api.contract import ApiRecord, Doc, record
from treadle.api.objectives import Criteria, Level, Metadata, Objective, ObjectiveId, OptionalLevel, Prompt, StatusWord
from treadle.api.wire import Instant, record_of
from treadle.interfaces.mcp.request_context import RequestContext
from treadle.interfaces.mcp.tool import tool
from treadle.interfaces.mcp.truncate import PAGE, Before, Limit, last, page_size, shown
from treadle.model.access import Scope
from treadle.model.values import Json

_TRAILS = 5


@record
class ObjectiveLine(ApiRecord):
    """Summary of an objective."""

    objective_id: str
    title: str
    status: str
    """`NEW`, `TODO`, `IN_PROGRESS`, `BLOCKED` or `DONE`."""
    type: str
    """`TICKET`, `STANDING`, or another type that a topology declares."""
    importance: int
    """From 0 to 4, 4 is the highest."""
    urgency: int
    blocked_by: list[str]
    """Ids of objectives, or reasons, that block it."""
    created_by: str
    created_at: Instant
    updated_at: Instant


@record
class ObjectiveLines(ApiRecord):
    """Objectives, newest first."""

    objectives: list[ObjectiveLine]
    next_before: str | None
    """Pass it as `before` for the next page; null on the last page."""


@record
class Try(ApiRecord):
    """A workorder: one attempt at an objective and its result."""

    work_order_id: str
    handler: str
    status: str
    """`CREATED` or `EXECUTED`."""
    gate_result: str | None
    """`PASS` or `FAIL`."""
    reason: str | None
    content: Json
    """The handler's output."""
    next_actions: list[str]


@record
class ObjectiveView(ObjectiveLine):
    """One objective."""

    why: str
    """The reason for its status, in one line."""
    acceptance_criteria: list[str]
    metadata: Json
    tries: list[Try]
    """The last 5."""


def objective_line(each: Objective) -> ObjectiveLine:
    """The summary of an objective."""
    return record_of(ObjectiveLine, each, blocked_by=_blocked_by(each))


def _blocked_by(each: Objective) -> list[str]:
    return [blocker.objective_id or blocker.text or "" for blocker in each.open_blockers]


@tool()
async def objective_list(
    context: RequestContext,
    status: Annotated[Sequence[StatusWord], Doc("Only these statuses", ["TODO"])] = (),
    limit: Limit = PAGE,
    before: Before = None,
) -> ObjectiveLines:
    """Objectives, newest first."""
    page = await context.api.objectives.list(status=status, limit=page_size(limit), before=before)
    return ObjectiveLines([objective_line(each) for each in page.objectives], page.next_before)


@tool()
async def objective_show(context: RequestContext, objective_id: ObjectiveId) -> ObjectiveView:
    """Show one objective: its status with the reason, and its last workorders with outputs and judgements."""
    found = await context.api.objectives.get(objective_id)
    tries = [
        Try(
            trail.workorder.work_order_id,
            trail.workorder.diazotroph_type,
            trail.workorder.status,
            None if trail.run_record is None else trail.run_record.gate_result,
            None if trail.run_record is None else trail.run_record.reason,
            None if trail.output_bundle is None else shown(trail.output_bundle.content),
            [] if trail.pause_state is None else [each.action for each in trail.pause_state.actions],
        )
        for trail in last(found.workorder_trails, _TRAILS)
    ]
    return record_of(ObjectiveView, found, blocked_by=_blocked_by(found), metadata=shown(found.metadata), tries=tries)


@tool(Scope.OPERATE)
async def objective_add(
    context: RequestContext,
    title: Annotated[str, Doc("The goal in one line of up to 500 characters", "greet must name the person")],
    acceptance_criteria: Annotated[Sequence[str], Criteria] = (),
    type: Annotated[  # noqa: A002 - the word of the artifact
        str, Doc("The type, whose rules a topology declares", "TICKET")
    ] = "TICKET",
    importance: Level = 2,
    urgency: Level = 2,
    blocked_by: Annotated[Sequence[str], Doc("Ids of objectives that must be DONE first, or textual reasons")] = (),
    metadata: Metadata = None,
    prompt: Prompt = None,
    key: Annotated[str | None, Doc("If an objective with this key is not DONE yet, return it instead of adding another")] = None,
) -> ObjectiveLine:
    """Add an objective with status NEW; it has to be approved before work starts."""
    added = await context.api.objectives.add(
        title,
        acceptance_criteria=acceptance_criteria,
        type=type,
        importance=importance,
        urgency=urgency,
        blocked_by=blocked_by,
        metadata=metadata,
        prompt=prompt,
        key=key,
    )
    return objective_line(added)


@tool(Scope.OPERATE, repeatable=True)
async def objective_edit(
    context: RequestContext,
    objective_id: ObjectiveId,
    title: Annotated[str | None, Doc("The goal in one line")] = None,
    acceptance_criteria: Annotated[Sequence[str] | None, Criteria] = None,
    importance: OptionalLevel = None,
    urgency: OptionalLevel = None,
) -> ObjectiveLine:
    """Edit an objective that is not DONE; omitted fields stay. A workorder in progress keeps its snapshot."""
    edited = await context.api.objectives.edit(
        objective_id, title=title, acceptance_criteria=acceptance_criteria, importance=importance, urgency=urgency
    )
    return objective_line(edited)


@tool(changes=True)
async def objective_manage(
    context: RequestContext,
    objective_id: ObjectiveId,
    action: Annotated[Literal["approve", "block", "unblock"], Doc("The action", "approve")],
    reason: Annotated[str | None, Doc("For `block`: reason; it stays blocked until somebody unblocks it")] = None,
    on: Annotated[str | None, Doc("For `block`: id of the objective that it waits for")] = None,
) -> ObjectiveLine:
    """Approve a NEW objective, block a TODO one, or resolve all blockers of one.

    `approve` needs the scope `approve`; `block` and `unblock` need `operate`.
    """
    objectives = context.api.objectives
    match action:
        case "approve":
            return objective_line(await objectives.approve(objective_id))
        case "block":
            return objective_line(await objectives.block(objective_id, reason=reason, on=on))
        case "unblock":
            return objective_line(await objectives.unblock(objective_id))


TOOLS = (objective_list, objective_show, objective_add, objective_edit, objective_manage)
