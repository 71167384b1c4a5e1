"""Watchers: their sources, changes, started work and known items."""

from __future__ import annotations

from starlette.responses import Response

from treadle.api.options import WatcherOptions
from treadle.interfaces.web.forms import TARGETS, described, options_of, text
from treadle.interfaces.web.site import Visit, act, action, page

SOURCES = ("directory", "file", "url")
"""Options that name the source; the form has a selection (`what`) and one place (`place`) for them."""
_FIELDS = described(WatcherOptions, (*TARGETS, *SOURCES))


@page("/watchers")
async def watchers(visit: Visit) -> Response:
    asked = visit.query
    page = await visit.api.watchers.list(every="every" in asked, before=text(asked, "before"))
    return await visit.render("watchers.html", page=page, fields=_FIELDS)


@action("/watchers")
async def create(visit: Visit) -> Response:
    form = await visit.form()
    source, given = text(form, "what") or SOURCES[0], options_of(form, WatcherOptions)
    if (place := text(form, "place")) is not None:
        given[source if source in SOURCES else SOURCES[0]] = place
    made = await visit.api.watchers.create(text(form, "name") or "", **given, paused="paused" in form)
    return visit.back(f"{made.name} is now watching.", to=f"/watchers/{made.id}")


@page("/watchers/{name}")
async def watcher(visit: Visit) -> Response:
    name = visit.path["name"]
    found = await visit.api.watchers.get(name)
    seen = await visit.api.watchers.seen(name, after=text(visit.query, "after"), limit=100)
    return await visit.render("watcher.html", watcher=found, seen=seen)


act("/watchers/{name}/pause", "watchers.pause")
act("/watchers/{name}/resume", "watchers.resume")
act("/watchers/{name}/look", "watchers.look", "{name} will scan as soon as a worker is free.")
act("/watchers/{name}/remove", "watchers.remove", "{name} is removed; work it has started continues.", to="/watchers")
