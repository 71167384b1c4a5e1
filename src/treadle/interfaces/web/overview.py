"""The overview: health, throughput, and everything that needs attention."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from starlette.responses import RedirectResponse, Response

from treadle.api.system import Status, Throughput
from treadle.engine.operations import Operations
from treadle.interfaces.web.forms import if_allowed
from treadle.interfaces.web.site import Visit, no_page, page
from treadle.model.errors import Forbidden, InvalidInput, NotFound
from treadle.model.ids import parse_id

_SHOWN = 5
_NEWEST = 8


@dataclass(frozen=True)
class Hour:
    """The last hour, summed up."""

    completed: int
    failed: int
    a_minute: int | None
    """Tasks that ended in the last full minute; None: not counted yet."""
    longest_for: int


async def page_of(service: Operations, value: str) -> str:
    """The path of the page of the record with this id; raises `NotFound` (`no_such_page`)."""
    getters: tuple[tuple[str, Callable[[str], Awaitable[object]]], ...] = (
        ("runs", service.runs.get),
        ("tasks", service.tasks.get),
        ("approvals", service.approvals.get),
        ("external-jobs", service.external_jobs.get),
        ("schedules", service.schedules.get),
        ("watchers", service.watchers.get),
        ("servers", service.servers.get),
        ("objectives", service.objectives.get),
    )
    for group, get in getters:
        with suppress(NotFound, Forbidden, InvalidInput):
            await get(value)
            return f"/{group}/{value}"
    with suppress(NotFound, Forbidden):
        step = await service.steps.find(value)
        return f"/runs/{step.run_id}/steps/{step.step_id}"
    raise no_page(f"/go/{value}")


@page("/go/{value}")
async def go(visit: Visit) -> Response:
    """The page of the record with an id that a message names."""
    return RedirectResponse(await page_of(visit.api, parse_id(visit.path["value"], "id")), 303)


@page("/")
async def overview(visit: Visit) -> Response:
    status = await if_allowed(visit.api.system.status())
    runs = await visit.api.runs.list(limit=_NEWEST) if not visit.api.access.task_lists else None
    tasks = await if_allowed(visit.api.tasks.list(limit=_NEWEST)) if len(visit.api.access.task_lists) < 2 else None
    values: dict[str, Any] = {"system": status, "runs": runs, "tasks": tasks}
    if status is not None:
        pace = await visit.api.system.pace()
        values |= {
            "pace": pace,
            "hour": summed(pace),
            "chart": chart(pace, status),
            "approvals": (await visit.api.approvals.list(limit=_SHOWN)).approvals if status.approvals else [],
            "blocked": (await visit.api.objectives.list(status=["BLOCKED"], limit=_SHOWN)).objectives
            if status.blocked_objectives
            else [],
            "dead": (await visit.api.dead_letters.groups(limit=_SHOWN)).groups if status.dead_letters else [],
            "servers": (await visit.api.servers.list(live=True)).servers[:_NEWEST],
        }
    return await visit.render("overview.html", **values)


def summed(pace: Throughput) -> Hour:
    """The totals of the last hour."""
    whole = [minute for minute in pace.minutes[:-1] if minute.at >= pace.since_at]
    return Hour(
        completed=sum(minute.completed for minute in pace.minutes),
        failed=sum(minute.failed for minute in pace.minutes),
        a_minute=whole[-1].completed + whole[-1].failed if whole else None,
        longest_for=max(minute.waited_for for minute in pace.minutes),
    )


def chart(pace: Throughput, status: Status) -> dict[str, list[float | None]]:
    """The data of the charts, by minute; null: not counted yet. Instants and durations are seconds.

    `oldest` is derived from the ready task that has waited longest: at each earlier minute since it was due, it had waited that
    much less.
    """
    counted = [minute.at >= pace.since_at for minute in pace.minutes]
    columns = {
        name: [getattr(minute, name) if is_counted else None for minute, is_counted in zip(pace.minutes, counted, strict=True)]
        for name in ("completed", "failed", "retried", "taken_over")
    }
    due = status.tasks.oldest_due_at
    ends = [*(minute.at for minute in pace.minutes[1:]), status.now]
    return {
        "at": [minute.at.ms / 1000 for minute in pace.minutes],
        **columns,
        "waited": [
            minute.waited_for / 1000 if is_counted else None for minute, is_counted in zip(pace.minutes, counted, strict=True)
        ],
        "oldest": [None if due is None or end < due else (end - due).total_seconds() for end in ends],
    }
