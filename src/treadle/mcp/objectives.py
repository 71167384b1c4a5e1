"""Tools for objectives: what people want, and how far it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from treadle.api.contract import ApiRecord, Doc
from treadle.api.objectives import Criteria, Level, Metadata, Objective, ObjectiveId, Prompt, StatusWord
from treadle.api.wire import Instant
from treadle.mcp.request_context import RequestContext
from treadle.mcp.tool import tool
from treadle.mcp.truncate import PAGE, Before, Limit, last, page_size, shown
from treadle.model.access import Scope
from treadle.model.values import Json

_TRAILS = 5


@dataclass(frozen=True, slots=True)
class ObjectiveLine(ApiRecord):
    """An objective in brief."""

    objective_id: str
    title: str
    status: str
    """`NEW`, `TODO`, `IN_PROGRESS`, `BLOCKED` or `DONE`."""
    type: str
    """`TICKET` or `STANDING`."""
    importance: int
    """From 0 to 4, 4 is the highest."""
    urgency: int
    blocked_by: list[str]
    """Ids of objectives, or reasons, that keep it from being worked on."""
    created_by: str
    created_at: Instant
    updated_at: Instant


@dataclass(frozen=True, slots=True)
class ObjectiveLines(ApiRecord):
    """Objectives, newest first."""

    objectives: list[ObjectiveLine]
    next_before: str | None
    """Pass it as `before` for the next page; null on the last one."""


@dataclass(frozen=True, slots=True)
class Try(ApiRecord):
    """A workorder: one try at an objective, and what came of it."""

    work_order_id: str
    handler: str
    status: str
    """`CREATED` or `EXECUTED`."""
    gate_result: str | None
    """`PASS` or `FAIL`."""
    reason: str | None
    content: Json
    """What its handler brought."""
    next_actions: list[str]


@dataclass(frozen=True, slots=True)
class ObjectiveView(ObjectiveLine):
    """One objective."""

    why: str
    """Why it is where it is, in one line."""
    acceptance_criteria: list[str]
    metadata: Json
    tries: list[Try]
    """The last 5."""


def objective_line(each: Objective) -> ObjectiveLine:
    """The objective in brief."""
    return ObjectiveLine(
        each.objective_id,
        each.title,
        each.status,
        each.type,
        each.importance,
        each.urgency,
        [blocker.objective_id or blocker.text or "" for blocker in each.open_blockers],
        each.created_by,
        each.created_at,
        each.updated_at,
    )


@tool()
async def objective_list(
    desk: RequestContext,
    status: Annotated[Sequence[StatusWord], Doc("Only with these", ["TODO"])] = (),
    limit: Limit = PAGE,
    before: Before = None,
) -> ObjectiveLines:
    """Objectives, newest first."""
    page = await desk.api.objectives.list(status=status, limit=page_size(limit), before=before)
    return ObjectiveLines([objective_line(each) for each in page.objectives], page.next_before)


@tool()
async def objective_show(desk: RequestContext, objective_id: ObjectiveId) -> ObjectiveView:
    """One objective: where it stands and why, its last workorders, what they brought and how they were judged."""
    found = await desk.api.objectives.get(objective_id)
    brief = objective_line(found)
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
    return ObjectiveView(
        brief.objective_id,
        brief.title,
        brief.status,
        brief.type,
        brief.importance,
        brief.urgency,
        brief.blocked_by,
        brief.created_by,
        brief.created_at,
        brief.updated_at,
        why=found.why,
        acceptance_criteria=found.acceptance_criteria,
        metadata=shown(found.metadata),
        tries=tries,
    )


@tool(Scope.OPERATE)
async def objective_add(
    desk: RequestContext,
    title: Annotated[str, Doc("What is wanted, in one line of up to 500 characters", "greet must name the person")],
    acceptance_criteria: Annotated[Sequence[str], Criteria] = (),
    type: Annotated[  # noqa: A002 - the word of the artifact
        Literal["TICKET", "STANDING"], Doc("Which rules of the topology it follows")
    ] = "TICKET",
    importance: Level = 2,
    urgency: Level = 2,
    blocked_by: Annotated[Sequence[str], Doc("Ids of objectives that must be DONE first, or reasons")] = (),
    metadata: Metadata = None,
    prompt: Prompt = None,
    key: Annotated[str | None, Doc("While an objective with it is not DONE, that one is meant")] = None,
) -> ObjectiveLine:
    """Add an objective; it is NEW until somebody approves it."""
    added = await desk.api.objectives.add(
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


@tool(Scope.OPERATE)
async def objective_manage(
    desk: RequestContext,
    objective_id: ObjectiveId,
    action: Annotated[Literal["approve", "block", "unblock"], Doc("What to do", "approve")],
    reason: Annotated[str | None, Doc("To block: why; until somebody unblocks it")] = None,
    on: Annotated[str | None, Doc("To block: the id of the objective that it waits for")] = None,
) -> ObjectiveLine:
    """Let a NEW objective be worked on, keep a TODO one from it, or resolve all that blocks one."""
    objectives = desk.api.objectives
    match action:
        case "approve":
            return objective_line(await objectives.approve(objective_id))
        case "block":
            return objective_line(await objectives.block(objective_id, reason=reason, on=on))
        case "unblock":
            return objective_line(await objectives.unblock(objective_id))


TOOLS = (objective_list, objective_show, objective_add, objective_manage)
