"""Schedules and watchers: what starts work, by time or by a change of files and URLs."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from treadle.api.contract import option_fields
from treadle.api.options import ScheduleOptions, TimeOptions, WatcherOptions
from treadle.interfaces.web.forms import TARGETS, arguments_of, described, instant, text
from treadle.interfaces.web.schema_form import input_fields
from treadle.interfaces.web.site import Visit, act, action, listing, page

_FIELDS = described(ScheduleOptions)
_FIRST = [field for field in _FIELDS if field.name in ("cron", "every", "zone")]
"""Fields that most schedules need; the form has all others under Advanced."""
_ADVANCED = [field for field in _FIELDS if field not in _FIRST and field.name != "inputs"]
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
    times: Any = {name: value for name, value in arguments_of(query, option_fields(ScheduleOptions)).items() if name in _TIMES}
    preview = await visit.api.schedules.preview_new(**times, count=5) if {"cron", "every", "at"} & times.keys() else None
    inputs = await input_fields(visit.api, "schedules.create", arguments_of(query, ()))
    return await visit.render("schedule_form.html", preview=preview, first=_FIRST, advanced=_ADVANCED, inputs=inputs)


act("/schedules", "schedules.create", to="/schedules/{id}")


@page("/schedules/{name}")
async def schedule(visit: Visit) -> Response:
    name, query = visit.path["name"], visit.query
    schedule = await visit.api.schedules.get(name)
    is_live = schedule.state in ("active", "paused")
    preview = await visit.api.schedules.preview(name, count=5) if is_live else None
    start, end = instant(query, "start"), instant(query, "end")
    backfill = await visit.api.schedules.backfill(name, start, end, dry_run=True) if start and end else None
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
act("/schedules/{name}/run", "schedules.run_now", "Started now.", to="/{kind}s/{id}")
act("/schedules/{name}/edit", "schedules.edit")


def _backfilled(backfill: Any, options: object) -> str:
    return f"Started for {len(backfill.started)} ticks; {len(backfill.already)} were already started."


act("/schedules/{name}/backfill", "schedules.backfill", _backfilled)


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
    source, options = text(form, "what") or SOURCES[0], arguments_of(form, option_fields(WatcherOptions))
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
