"""Schedules and watchers: what starts work, by time or by a change of files and URLs."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from starlette.responses import Response

from treadle.api.contract import option_fields
from treadle.api.options import ScheduleOptions, TimeOptions, WatcherOptions
from treadle.interfaces.web.forms import TARGETS, Fields, described, instant, options_of, text
from treadle.interfaces.web.site import Visit, act, action, listing, page
from treadle.model.errors import InvalidInput

_FIELDS = described(ScheduleOptions)
_TIMES = {option.name for option in option_fields(TimeOptions)}


listing(
    "/schedules",
    "schedules.list",
    title="Schedules",
    note="Work that is started by time.",
    hint="treadle schedules add nightly --cron '0 3 * * *' --task billing.Report",
    new="New schedule",
)


@page("/schedules/new")
async def new(visit: Visit) -> Response:
    query = visit.query
    times: Any = {name: value for name, value in options_of(query, ScheduleOptions).items() if name in _TIMES}
    preview = await visit.api.schedules.preview_new(**times, count=5) if {"cron", "every", "at"} & times.keys() else None
    return await visit.render("schedule_form.html", preview=preview, fields=_FIELDS)


@action("/schedules")
async def create(visit: Visit) -> Response:
    form = await visit.form()
    schedule = await visit.api.schedules.create(
        text(form, "name") or "", **options_of(form, ScheduleOptions), paused="paused" in form
    )
    return visit.back(f"{schedule.name} is now {schedule.state}.", to=f"/schedules/{schedule.id}")


@page("/schedules/{name}")
async def schedule(visit: Visit) -> Response:
    name, query = visit.path["name"], visit.query
    schedule = await visit.api.schedules.get(name)
    is_live = schedule.state in ("active", "paused")
    preview = await visit.api.schedules.preview(name, count=5) if is_live else None
    since, until = instant(query, "since"), instant(query, "until")
    backfill = await visit.api.schedules.backfill(name, since, until, dry_run=True) if since and until else None
    transitions = await visit.api.schedules.transitions(name)
    return await visit.render(
        "schedule.html",
        schedule=schedule,
        preview=preview,
        backfill=backfill,
        transitions=transitions.transitions,
        fields=_FIELDS,
    )


act("/schedules/{name}/pause", "schedules.pause")
act("/schedules/{name}/resume", "schedules.resume")
act(
    "/schedules/{name}/remove",
    "schedules.remove",
    "{name} is removed; work it has started continues.",
    to="/schedules",
)


@action("/schedules/{name}/run")
async def run(visit: Visit) -> Response:
    started = await visit.api.schedules.run_now(visit.path["name"])
    return visit.back("Started now.", to=f"/{started.kind}s/{started.id}")


@action("/schedules/{name}/backfill")
async def backfill(visit: Visit) -> Response:
    form = await visit.form()
    backfill = await visit.api.schedules.backfill(visit.path["name"], _needed(form, "since"), _needed(form, "until"))
    return visit.back(f"Started for {len(backfill.started)} ticks; {len(backfill.already)} were already started.")


@action("/schedules/{name}/edit")
async def edit(visit: Visit) -> Response:
    done = await visit.api.schedules.edit(visit.path["name"], **options_of(await visit.form(), ScheduleOptions))
    return visit.back(f"{done.name} is now {done.state}.")


def _needed(form: Fields, name: str) -> datetime:
    moment = instant(form, name)
    if moment is None:
        raise InvalidInput(f"Enter {name}: a date and a time.")
    return moment


SOURCES = ("directory", "file", "url")
"""Options that name the source; the form has a selection (`what`) and one place (`place`) for them."""
_WATCHER_FIELDS = described(WatcherOptions, (*TARGETS, *SOURCES))


listing(
    "/watchers",
    "watchers.list",
    title="Watchers",
    note="Work that is started when files or addresses change.",
    hint="treadle watchers add incoming --directory /srv/incoming --task files.Import",
    form="watcher_form.html",
    fields=_WATCHER_FIELDS,
)


@action("/watchers")
async def create_watcher(visit: Visit) -> Response:
    form = await visit.form()
    source, options = text(form, "what") or SOURCES[0], options_of(form, WatcherOptions)
    if (place := text(form, "place")) is not None:
        options[source if source in SOURCES else SOURCES[0]] = place
    watcher = await visit.api.watchers.create(text(form, "name") or "", **options, paused="paused" in form)
    return visit.back(f"{watcher.name} is now watching.", to=f"/watchers/{watcher.id}")


@page("/watchers/{name}")
async def watcher(visit: Visit) -> Response:
    name = visit.path["name"]
    watcher = await visit.api.watchers.get(name)
    seen = await visit.api.watchers.seen(name, after=text(visit.query, "after"), limit=100)
    return await visit.render("watcher.html", watcher=watcher, seen=seen)


act("/watchers/{name}/pause", "watchers.pause")
act("/watchers/{name}/resume", "watchers.resume")
act("/watchers/{name}/look", "watchers.look", "{name} will scan as soon as a worker is free.")
act("/watchers/{name}/remove", "watchers.remove", "{name} is removed; work it has started continues.", to="/watchers")
