"""Handlers: registrations for runners, which can be added, edited, removed and tested, and the servers that provide others."""

from __future__ import annotations

from starlette.responses import Response

from treadle.engine.operations import Operations
from treadle.interfaces.web.forms import if_allowed, parse_object
from treadle.interfaces.web.site import Visit, act, action, detail, page
from treadle.model.access import Scope

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


act("/handlers", "handlers.register", "{facet_name} is registered.", to="/handlers/{facet_name}")
act("/handlers/{facet_name}/edit", "handlers.edit", "{facet_name} is changed; runners load it with their next refresh.")
act(
    "/handlers/{facet_name}/remove",
    "handlers.remove",
    "{removed} is removed; its tasks wait until another is registered.",
    to="/handlers",
)


@action("/handlers/{facet_name}/test")
async def test(visit: Visit) -> Response:
    facet_name, form = visit.path["facet_name"], await visit.form()
    typed = str(form.get("payload") or "")
    test = await visit.api.handlers.test(facet_name, parse_object(form, "payload"), wait_for=TRY_FOR)
    handler = await visit.api.handlers.get(facet_name)
    return await visit.render("handler.html", handler=handler, test=test, payload=typed)


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
