"""`treadle servers`: the processes that host workers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from treadle.cli.session import Session
from treadle.cli.shapes import server_json
from treadle.cli.words import ago, grid, plain, short, state
from treadle.kernel.reads import ShownServer

if TYPE_CHECKING:
    from rich.console import RenderableType


async def servers(
    session: Session,
    live: Annotated[bool, typer.Option("--live", help="Leave out those that have stopped")] = False,
) -> None:
    """List the servers, newest first; one that missed three heartbeats is shown as lost."""
    async with session.engine() as engine:
        found = [shown for shown in await engine.reads.list_servers() if not (live and shown.state == "stopped")]
        now = await engine.store.now()
    session.show({"servers": [server_json(shown) for shown in found]}, lambda: _table(found, now))


def _table(found: list[ShownServer], now: int) -> RenderableType:
    if not found:
        return plain("No servers. Start one with `treadle worker --handlers MODULE`.")
    table = grid("name", "state", ">pid", "started", "heartbeat", ">running", ">handled", ">failed", "lists", "handlers")
    for shown in found:
        server = shown.server
        table.add_row(
            plain(server.name),
            state(shown.state),
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
