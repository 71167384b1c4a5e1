"""Watchers: their sources, changes, started work and known items."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from treadle.api.options import WatcherOptions
from treadle.engine.operations import Operations
from treadle.interfaces.web.forms import TARGETS, described, options_of, text
from treadle.interfaces.web.site import Site
from treadle.model.errors import InvalidInput

SOURCES = ("directory", "file", "url")
"""Options that name the source; the form has a selection (`what`) and one place (`place`) for them."""
_FIELDS = described(WatcherOptions, (*TARGETS, *SOURCES))


def add(site: Site) -> None:
    """Register the pages."""

    @site.page("/watchers")
    async def watchers(request: Request, service: Operations) -> Response:
        asked = request.query_params
        page = await service.watchers.list(every="every" in asked, before=text(asked, "before"))
        return await site.render(request, "watchers.html", service=service, page=page, fields=_FIELDS)

    @site.action("/watchers")
    async def create(request: Request, service: Operations) -> Response:
        form = await request.form()
        source, given = text(form, "what") or SOURCES[0], options_of(form, WatcherOptions)
        if (place := text(form, "place")) is not None:
            given[source if source in SOURCES else SOURCES[0]] = place
        made = await service.watchers.create(text(form, "name") or "", **given, paused="paused" in form)
        return site.back(request, f"{made.name} is now watching.", to=f"/watchers/{made.id}")

    @site.page("/watchers/{name}")
    async def watcher(request: Request, service: Operations) -> Response:
        name = request.path_params["name"]
        found = await service.watchers.get(name)
        seen = await service.watchers.seen(name, after=text(request.query_params, "after"), limit=100)
        return await site.render(request, "watcher.html", service=service, watcher=found, seen=seen)

    @site.action("/watchers/{name}/{act}")
    async def act(request: Request, service: Operations) -> Response:
        name = request.path_params["name"]
        match request.path_params["act"]:
            case "pause":
                done = await service.watchers.pause(name)
            case "resume":
                done = await service.watchers.resume(name)
            case "look":
                done = await service.watchers.look(name)
                return site.back(request, f"{done.name} will scan as soon as a worker is free.")
            case "remove":
                done = await service.watchers.remove(name)
                return site.back(request, f"{done.name} is removed; work it has started continues.", to="/watchers")
            case other:
                raise InvalidInput(f"Unknown action {other!r}.")
        return site.back(request, f"{done.name} is now {done.state}.")
