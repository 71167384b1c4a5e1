"""Tools for schedules: work started by time."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Literal, Unpack

from treadle.api.contract import ApiRecord, Doc, record
from treadle.api.options import ScheduleOptions
from treadle.api.schedules import Backfilled, Schedule, ScheduleName, SchedulePreview, Started
from treadle.api.wire import Instant, record_of
from treadle.interfaces.mcp.request_context import RequestContext
from treadle.interfaces.mcp.tool import tool
from treadle.interfaces.mcp.truncate import PAGE, Before, Limit, error_line, page_size
from treadle.model.access import Scope


@record
class ScheduleLine(ApiRecord):
    """Summary of a schedule."""

    name: str
    state: Literal["active", "paused", "finished", "removed", "unreadable"]
    next_at: Instant | None
    """The next tick; null if there is none."""
    target: str
    """The kind and the name of the work that it starts."""
    fired: int
    skipped: int
    error: str | None
    """Why a tick could not start its work; it is retried."""


@record
class ScheduleLines(ApiRecord):
    """Schedules, newest first."""

    schedules: list[ScheduleLine]
    next_before: str | None
    """Pass it as `before` for the next page; null on the last page."""


def schedule_line(each: Schedule) -> ScheduleLine:
    """The summary of a schedule."""
    return record_of(ScheduleLine, each, target=f"{each.target.kind} {each.target.name}", error=error_line(each.error))


@tool()
async def schedule_list(
    context: RequestContext,
    every: Annotated[bool, Doc("Include ended ones")] = False,
    limit: Limit = PAGE,
    before: Before = None,
) -> ScheduleLines:
    """Schedules, newest first."""
    page = await context.api.schedules.list(every=every, limit=page_size(limit), before=before)
    return ScheduleLines([schedule_line(each) for each in page.schedules], page.next_before)


@tool()
async def schedule_show(context: RequestContext, name: ScheduleName) -> Schedule:
    """One schedule: times, target, policies, outcomes of its last ticks, and its error, if any."""
    return await context.api.schedules.get(name)


@tool()
async def schedule_preview(
    context: RequestContext, name: ScheduleName, count: Annotated[int, Doc("Number of ticks, up to 100")] = 10
) -> SchedulePreview:
    """The missed ticks of a schedule that fire now, and the next ones."""
    return await context.api.schedules.preview(name, count=page_size(count))


@tool(Scope.OPERATE)
async def schedule_create(
    context: RequestContext,
    name: Annotated[str, Doc("The name", "nightly-report")],
    paused: Annotated[bool, Doc("Create it paused")] = False,
    **options: Unpack[ScheduleOptions],
) -> ScheduleLine:
    """Create a schedule (one of `cron`, `every` and `at`) that starts one of `task`, `workflow` and `function`."""
    return schedule_line(await context.api.schedules.create(name, paused=paused, **options))


@tool(Scope.OPERATE, repeatable=True)
async def schedule_edit(
    context: RequestContext,
    name: ScheduleName,
    clear: Annotated[Sequence[Literal["start", "end", "version", "retry"]], Doc("Options to remove")] = (),
    **options: Unpack[ScheduleOptions],
) -> ScheduleLine:
    """Edit a schedule, effective immediately; omitted options stay. New times apply from now on."""
    return schedule_line(await context.api.schedules.edit(name, clear=clear, **options))


@tool(Scope.OPERATE, repeatable=True)
async def schedule_manage(
    context: RequestContext, name: ScheduleName, action: Annotated[Literal["pause", "resume"], Doc("The action")]
) -> ScheduleLine:
    """Pause a schedule, or resume it; its catch-up policy applies to missed ticks."""
    schedules = context.api.schedules
    return schedule_line(await (schedules.pause(name) if action == "pause" else schedules.resume(name)))


@tool(Scope.OPERATE)
async def schedule_run(context: RequestContext, name: ScheduleName) -> Started:
    """Start the schedule's work once, now; its ticks are not affected."""
    return await context.api.schedules.run_now(name)


@tool(Scope.OPERATE)
async def schedule_backfill(
    context: RequestContext,
    name: ScheduleName,
    start: Annotated[datetime, Doc("First tick, at or after this time", "2026-01-01T00:00:00Z")],
    end: Annotated[datetime, Doc("Last tick, at or before this time", "2026-01-31T00:00:00Z")],
    dry_run: Annotated[bool, Doc("Return only the ticks; start nothing")] = True,
) -> Backfilled:
    """Start the work of past ticks that have not fired. Only lists them, unless `dry_run` is false."""
    return await context.api.schedules.backfill(name, start, end, dry_run=dry_run)


@tool(Scope.OPERATE, ends=True)
async def schedule_delete(context: RequestContext, name: ScheduleName) -> ScheduleLine:
    """Delete a schedule permanently; started work continues."""
    return schedule_line(await context.api.schedules.remove(name))


TOOLS = (
    schedule_list,
    schedule_show,
    schedule_preview,
    schedule_create,
    schedule_edit,
    schedule_manage,
    schedule_run,
    schedule_backfill,
    schedule_delete,
)
