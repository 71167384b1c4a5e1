"""Schedules: their ticks and results; create, edit, pause, run now and backfill."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from treadle.api.contract import option_fields
from treadle.api.options import ScheduleOptions, TimeOptions
from treadle.engine.operations import Operations
from treadle.interfaces.web.forms import Fields, described, instant, options_of, text
from treadle.interfaces.web.site import Site
from treadle.model.errors import InvalidInput

_FIELDS = described(ScheduleOptions)
_TIMES = {each.name for each in option_fields(TimeOptions)}


def add(site: Site) -> None:
    """Register the pages."""

    @site.page("/schedules")
    async def schedules(request: Request, service: Operations) -> Response:
        asked = request.query_params
        page = await service.schedules.list(every="every" in asked, before=text(asked, "before"))
        return await site.render(request, "schedules.html", service=service, page=page)

    @site.page("/schedules/new")
    async def new(request: Request, service: Operations) -> Response:
        asked = request.query_params
        times: Any = {name: value for name, value in options_of(asked, ScheduleOptions).items() if name in _TIMES}
        preview = await service.schedules.preview_new(**times, count=5) if {"cron", "every", "at"} & times.keys() else None
        return await site.render(request, "schedule_form.html", service=service, preview=preview, fields=_FIELDS)

    @site.action("/schedules")
    async def create(request: Request, service: Operations) -> Response:
        form = await request.form()
        made = await service.schedules.create(
            text(form, "name") or "", **options_of(form, ScheduleOptions), paused="paused" in form
        )
        return site.back(request, f"{made.name} is now {made.state}.", to=f"/schedules/{made.id}")

    @site.page("/schedules/{name}")
    async def schedule(request: Request, service: Operations) -> Response:
        name, asked = request.path_params["name"], request.query_params
        found = await service.schedules.get(name)
        is_live = found.state in ("active", "paused")
        preview = await service.schedules.preview(name, count=5) if is_live else None
        since, until = instant(asked, "since"), instant(asked, "until")
        backfill = await service.schedules.backfill(name, since, until, dry_run=True) if since and until else None
        moves = await service.schedules.moves(name)
        return await site.render(
            request,
            "schedule.html",
            service=service,
            schedule=found,
            preview=preview,
            backfill=backfill,
            moves=moves.moves,
            fields=_FIELDS,
        )

    @site.action("/schedules/{name}/{act}")
    async def act(request: Request, service: Operations) -> Response:
        name, form = request.path_params["name"], await request.form()
        match request.path_params["act"]:
            case "pause":
                done = await service.schedules.pause(name)
            case "resume":
                done = await service.schedules.resume(name)
            case "remove":
                done = await service.schedules.remove(name)
                return site.back(request, f"{done.name} is removed; work it has started continues.", to="/schedules")
            case "run":
                started = await service.schedules.run_now(name)
                return site.back(request, "Started now.", to=f"/{started.kind}s/{started.id}")
            case "backfill":
                since, until = _needed(form, "since"), _needed(form, "until")
                made = await service.schedules.backfill(name, since, until)
                return site.back(request, f"Started for {len(made.started)} ticks; {len(made.already)} were already started.")
            case "edit":
                done = await service.schedules.edit(name, **options_of(form, ScheduleOptions))
            case other:
                raise InvalidInput(f"Unknown action {other!r}.")
        return site.back(request, f"{done.name} is now {done.state}.")


def _needed(form: Fields, name: str) -> datetime:
    found = instant(form, name)
    if found is None:
        raise InvalidInput(f"Enter {name}: a date and a time.")
    return found
