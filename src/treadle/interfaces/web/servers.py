"""Servers: the fleet, and each process with its handlers and counts."""

from __future__ import annotations

from starlette.responses import Response

from treadle.engine.operations import Operations
from treadle.interfaces.web.forms import if_allowed
from treadle.interfaces.web.site import Visit, page


async def server_names(service: Operations) -> dict[str, str]:
    """The names of servers by id; empty if the caller may not see them."""
    found = await if_allowed(service.servers.list())
    return {} if found is None else {each.id: each.name for each in found.servers}


@page("/servers")
async def servers(visit: Visit) -> Response:
    fleet = await visit.api.servers.fleet()
    found = (await visit.api.servers.list(live="every" not in visit.query)).servers
    return await visit.render("servers.html", fleet=fleet, servers=found)


@page("/servers/{server_id}")
async def server(visit: Visit) -> Response:
    found = await visit.api.servers.get(visit.path["server_id"])
    return await visit.render("server.html", server=found)
