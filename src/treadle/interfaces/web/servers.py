"""Servers: the fleet, and each process with its handlers and counts."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from treadle.engine.operations import Operations
from treadle.interfaces.web.forms import if_allowed
from treadle.interfaces.web.site import Site


async def server_names(service: Operations) -> dict[str, str]:
    """The names of servers by id; empty if the caller may not see them."""
    found = await if_allowed(service.servers.list())
    return {} if found is None else {each.id: each.name for each in found.servers}


def add(site: Site) -> None:
    """Register the pages."""

    @site.page("/servers")
    async def servers(request: Request, service: Operations) -> Response:
        fleet = await service.servers.fleet()
        found = (await service.servers.list(live="every" not in request.query_params)).servers
        return await site.render(request, "servers.html", service=service, fleet=fleet, servers=found)

    @site.page("/servers/{server_id}")
    async def server(request: Request, service: Operations) -> Response:
        found = await service.servers.get(request.path_params["server_id"])
        return await site.render(request, "server.html", service=service, server=found)
