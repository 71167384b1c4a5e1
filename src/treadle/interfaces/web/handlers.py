"""Handlers: registrations for runners, which can be added, edited, removed and tested, and the servers that provide others."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from starlette.datastructures import FormData
from starlette.responses import Response

from treadle.engine.operations import Operations
from treadle.interfaces.web.forms import if_allowed, number, parse_object, text
from treadle.interfaces.web.site import Visit, act, action, detail, page
from treadle.model.access import Scope
from treadle.model.errors import InvalidInput

TRY_FOR = 30.0
"""Seconds that a test may take."""


@page("/handlers")
async def handlers(visit: Visit) -> Response:
    registered = (await visit.api.handlers.list()).handlers
    rates = await visit.api.handlers.rates()
    served = {handler.name: handler.servers for handler in (await visit.api.servers.fleet()).handlers}
    return await visit.render("handlers.html", handlers=registered, served=served, rates=rates)


@page("/handlers/new")
async def new(visit: Visit) -> Response:
    visit.api.access.check(Scope.REGISTER)
    return await visit.render("handler.html", handler=None, test=None, payload="{}")


@page("/handlers/{facet_name}")
async def handler(visit: Visit) -> Response:
    handler = await visit.api.handlers.get(visit.path["facet_name"])
    return await visit.render("handler.html", handler=handler, test=None, payload="{}")


@action("/handlers")
async def register(visit: Visit) -> Response:
    form = await visit.form()
    facet_name, module_uri = text(form, "facet_name"), text(form, "module_uri")
    if facet_name is None or module_uri is None:
        raise InvalidInput("Enter the name of the facet and the module.")
    handler = await visit.api.handlers.register(facet_name, module_uri, **_options(form))
    return visit.back(f"{handler.facet_name} is registered.", to=f"/handlers/{quote(handler.facet_name, safe='')}")


act(
    "/handlers/{facet_name}/remove",
    "handlers.remove",
    "{removed} is removed; its tasks wait until another is registered.",
    to="/handlers",
)


@action("/handlers/{facet_name}/{act}")
async def change(visit: Visit) -> Response:
    facet_name, form = visit.path["facet_name"], await visit.form()
    match visit.path["act"]:
        case "edit":
            await visit.api.handlers.edit(facet_name, module_uri=text(form, "module_uri"), **_options(form))
            return visit.back(f"{facet_name} is changed; runners load it with their next refresh.")
        case "test":
            typed = str(form.get("payload") or "")
            test = await visit.api.handlers.test(facet_name, parse_object(form, "payload"), wait_for=TRY_FOR)
            handler = await visit.api.handlers.get(facet_name)
            return await visit.render("handler.html", handler=handler, test=test, payload=typed)
        case other:
            raise InvalidInput(f"Unknown action {other!r}.")


def _options(form: FormData) -> dict[str, Any]:
    """The options that are filled in; others keep their default or current value."""
    options: dict[str, Any] = {name: text(form, name) for name in ("entrypoint", "version", "checksum")}
    options["timeout"] = number(form, "timeout")
    options["metadata"] = parse_object(form, "metadata")
    if "requirements" in form:
        options["requirements"] = [line.strip() for line in str(form["requirements"]).splitlines() if line.strip()]
    return {name: value for name, value in options.items() if value is not None}


async def server_names(service: Operations) -> dict[str, str]:
    """The names of servers by id; empty if the caller may not see them."""
    server_list = await if_allowed(service.servers.list())
    return {} if server_list is None else {server.id: server.name for server in server_list.servers}


@page("/servers")
async def servers(visit: Visit) -> Response:
    fleet = await visit.api.servers.fleet()
    servers = (await visit.api.servers.list(live="every" not in visit.query)).servers
    return await visit.render("servers.html", fleet=fleet, servers=servers)


detail("/servers/{server_id}", "servers.get", "server")
