"""Handlers: registrations for runners are added, edited, removed and tried here; what servers bring is shown."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from fastapi import Request
from fastapi.responses import Response
from starlette.datastructures import FormData

from treadle.model.access import Scope
from treadle.model.errors import InvalidInput
from treadle.service import Service
from treadle.web.forms import number, parse_object, text
from treadle.web.site import Site

TRY_FOR = 30.0
"""Seconds that a trial may take."""


def add(site: Site) -> None:
    """Register the pages."""

    @site.page("/handlers")
    async def handlers(request: Request, service: Service) -> Response:
        found = (await service.handlers.list()).handlers
        served = {each.name: each.servers for each in (await service.servers.fleet()).handlers}
        return await site.render(request, "handlers.html", service=service, handlers=found, served=served)

    @site.page("/handlers/new")
    async def new(request: Request, service: Service) -> Response:
        service.access.check(Scope.ADMIN)
        return await site.render(request, "handler.html", service=service, handler=None, trial=None, payload="{}")

    @site.page("/handlers/{facet_name}")
    async def handler(request: Request, service: Service) -> Response:
        found = await service.handlers.get(request.path_params["facet_name"])
        return await site.render(request, "handler.html", service=service, handler=found, trial=None, payload="{}")

    @site.action("/handlers")
    async def register(request: Request, service: Service) -> Response:
        form = await request.form()
        facet_name, module_uri = text(form, "facet_name"), text(form, "module_uri")
        if facet_name is None or module_uri is None:
            raise InvalidInput("Say the facet's name and the module.")
        made = await service.handlers.register(facet_name, module_uri, **_options(form))
        return site.back(request, f"{made.facet_name} is registered.", to=f"/handlers/{quote(made.facet_name, safe='')}")

    @site.action("/handlers/{facet_name}/{act}")
    async def act(request: Request, service: Service) -> Response:
        facet_name, form = request.path_params["facet_name"], await request.form()
        match request.path_params["act"]:
            case "edit":
                await service.handlers.edit(facet_name, module_uri=text(form, "module_uri"), **_options(form))
                return site.back(request, f"{facet_name} is changed; runners see it with their next refresh.")
            case "remove":
                await service.handlers.remove(facet_name)
                return site.back(request, f"{facet_name} is removed; its tasks wait until there is another.", to="/handlers")
            case "test":
                typed = str(form.get("payload") or "")
                trial = await service.handlers.test(facet_name, parse_object(typed), wait_for=TRY_FOR)
                found = await service.handlers.get(facet_name)
                return await site.render(request, "handler.html", service=service, handler=found, trial=trial, payload=typed)
            case other:
                return site.back(request, f"There is nothing called {other} to do with a handler.", bad=True)


def _options(form: FormData) -> dict[str, Any]:
    """What was typed; where nothing was, what registering has by default, and editing leaves."""
    said: dict[str, Any] = {name: text(form, name) for name in ("entrypoint", "version", "checksum")}
    said["timeout"] = number(form, "timeout")
    said["metadata"] = parse_object(form.get("metadata"))
    if "requirements" in form:
        said["requirements"] = [line.strip() for line in str(form["requirements"]).splitlines() if line.strip()]
    return {name: value for name, value in said.items() if value is not None}
