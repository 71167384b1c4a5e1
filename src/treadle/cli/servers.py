"""`treadle servers`: the processes that host workers."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated

from treadle.cli.command import option
from treadle.cli.format import ago, grid, plain, short, state
from treadle.cli.session import Session

if TYPE_CHECKING:
    from rich.console import RenderableType

    from treadle.api.servers import Server


async def servers(
    session: Session,
    live: Annotated[bool, option("--live", help="Leave out those that have stopped")] = False,
) -> None:
    """List the servers, newest first; one that missed three heartbeats is shown as lost."""
    async with session.api() as api:
        found = await api.servers.list(live=live)
        now = (await api.system.time()).now
    session.show(found, lambda: _table(found.servers, now))


def _table(found: list[Server], now: datetime) -> RenderableType:
    if not found:
        return plain("No servers. Start one with `treadle worker --handlers MODULE`.")
    table = grid("name", "state", ">pid", "started", "heartbeat", ">running", ">handled", ">failed", "lists", "handlers")
    for server in found:
        table.add_row(
            plain(server.name),
            state(server.state),
            str(server.pid or "-"),
            ago(server.started_at, now),
            ago(server.heartbeat_at, now),
            f"{server.running}/{server.concurrency}",
            str(server.handled),
            str(server.failed),
            plain(", ".join(server.task_lists)),
            plain(short(", ".join(server.handlers) or "-", 100)),
        )
    return table
