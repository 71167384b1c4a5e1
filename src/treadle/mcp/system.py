"""Tools about the system as a whole: why anything is where it is, how the system is, and what its workers can do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from treadle.api.contract import ApiRecord, Doc
from treadle.api.system import Status
from treadle.api.tasks import Why
from treadle.mcp.request_context import RequestContext
from treadle.mcp.tool import tool


@dataclass(frozen=True, slots=True)
class Abilities(ApiRecord):
    """What live workers can do."""

    handlers: dict[str, int]
    """Names of handlers (event facets of flows, names of tasks), and how many servers have each."""
    task_lists: dict[str, int]
    slots: int
    """Tasks that they can run at once."""
    running: int
    servers: dict[str, int]
    """Servers by state."""


@tool()
async def why(
    desk: RequestContext,
    id: Annotated[str, Doc("The id of a task, a run, an objective, an approval or an outside job")],  # noqa: A002
) -> Why:
    """Why something is where it is, in one line: what it waits for, or how it ended. Ask this first when nothing happens."""
    return await desk.api.system.why(id)


@tool()
async def system_status(desk: RequestContext) -> Status:
    """How the system is: whether something is wrong, and what there is to do."""
    return await desk.api.system.status()


@tool()
async def worker_abilities(desk: RequestContext) -> Abilities:
    """What live workers can do: the handlers that a flow's event facets, or tasks, find somebody for."""
    fleet = await desk.api.servers.fleet()
    return Abilities(
        {each.name: each.servers for each in fleet.handlers},
        {each.name: each.servers for each in fleet.task_lists},
        fleet.slots,
        fleet.running,
        fleet.states,
    )


TOOLS = (why, system_status, worker_abilities)
