"""Tools about the system: reasons for states, status, and abilities of the workers."""

from __future__ import annotations

from typing import Annotated

from treadle.api.contract import ApiRecord, Doc, record
from treadle.api.system import Status
from treadle.api.tasks import Why
from treadle.interfaces.mcp.request_context import RequestContext
from treadle.interfaces.mcp.tool import tool


@record
class Abilities(ApiRecord):
    """Abilities of the live workers."""

    handlers: dict[str, int]
    """Handlers (event facets of flows, names of tasks) with the number of servers that have each."""
    task_lists: dict[str, int]
    slots: int
    """Tasks that they can run concurrently."""
    running: int
    servers: dict[str, int]
    """Servers by state."""


@tool()
async def why(
    context: RequestContext,
    id: Annotated[str, Doc("Id of a task, run, objective, approval or external job; or name of a schedule or watcher")],  # noqa: A002
) -> Why:
    """The reason for a state, in one line. Call this first when nothing happens."""
    return await context.api.system.why(id)


@tool()
async def system_status(context: RequestContext) -> Status:
    """Status of the system and its problems."""
    return await context.api.system.status()


@tool()
async def worker_abilities(context: RequestContext) -> Abilities:
    """The abilities of live workers: handlers that event facets and tasks can use."""
    fleet = await context.api.servers.fleet()
    return Abilities(
        {each.name: each.servers for each in fleet.handlers},
        {each.name: each.servers for each in fleet.task_lists},
        fleet.slots,
        fleet.running,
        fleet.states,
    )


TOOLS = (why, system_status, worker_abilities)
