"""Handlers: registrations for runners, which can be added, edited, removed and tested, and the handlers that servers provide."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from starlette.datastructures import FormData
from starlette.requests import Request
from starlette.responses import Response

from treadle.engine.operations import Operations
from treadle.interfaces.web.forms import number, parse_object, text
from treadle.interfaces.web.site import Site
from treadle.model.access import Scope
from treadle.model.errors import InvalidInput

TRY_FOR = 30.0
"""Seconds that a test may take."""


def add(site: Site) -> None:
    """Register the pages."""

    @site.page("/handlers")
    async def handlers(request: Request, service: Operations) -> Response:
        found = (await service.handlers.list()).handlers
        rates = await service.handlers.rates()
        served = {each.name: each.servers for each in (await service.servers.fleet()).handlers}
        return await site.render(request, "handlers.html", service=service, handlers=found, served=served, rates=rates)

    @site.page("/handlers/new")
    async def new(request: Request, service: Operations) -> Response:
        service.access.check(Scope.REGISTER)
        return await site.render(request, "handler.html", service=service, handler=None, trial=None, payload="{}")

    @site.page("/handlers/{facet_name}")
    async def handler(request: Request, service: Operations) -> Response:
        found = await service.handlers.get(request.path_params["facet_name"])
        return await site.render(request, "handler.html", service=service, handler=found, trial=None, payload="{}")

    @site.action("/handlers")
    async def register(request: Request, service: Operations) -> Response:
        form = await request.form()
        facet_name, module_uri = text(form, "facet_name"), text(form, "module_uri")
        if facet_name is None or module_uri is None:
            raise InvalidInput("Enter the name of the facet and the module.")
        made = await service.handlers.register(facet_name, module_uri, **_options(form))
        return site.back(request, f"{made.facet_name} is registered.", to=f"/handlers/{quote(made.facet_name, safe='')}")

    @site.action("/handlers/{facet_name}/{act}")
    async def act(request: Request, service: Operations) -> Response:
        facet_name, form = request.path_params["facet_name"], await request.form()
        match request.path_params["act"]:
            case "edit":
                await service.handlers.edit(facet_name, module_uri=text(form, "module_uri"), **_options(form))
                return site.back(request, f"{facet_name} is changed; runners load it with their next refresh.")
            case "remove":
                await service.handlers.remove(facet_name)
                return site.back(request, f"{facet_name} is removed; its tasks wait until another is registered.", to="/handlers")
            case "test":
                typed = str(form.get("payload") or "")
                trial = await service.handlers.test(facet_name, parse_object(form, "payload"), wait_for=TRY_FOR)
                found = await service.handlers.get(facet_name)
                return await site.render(request, "handler.html", service=service, handler=found, trial=trial, payload=typed)
            case other:
                raise InvalidInput(f"Unknown action {other!r}.")


def _options(form: FormData) -> dict[str, Any]:
    """The options that are filled in; others keep their default or current value."""
    given: dict[str, Any] = {name: text(form, name) for name in ("entrypoint", "version", "checksum")}
    given["timeout"] = number(form, "timeout")
    given["metadata"] = parse_object(form, "metadata")
    if "requirements" in form:
        given["requirements"] = [line.strip() for line in str(form["requirements"]).splitlines() if line.strip()]
    return {name: value for name, value in given.items() if value is not None}
