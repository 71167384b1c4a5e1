"""`treadle effects ...`: effects of handlers and functions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from treadle.interfaces.cli.command import option
from treadle.interfaces.cli.output.format import ago, grid, plain, state
from treadle.interfaces.cli.session import Session

if TYPE_CHECKING:
    from datetime import datetime

    from rich.console import RenderableType

    from treadle.api.effects import UnknownEffect


async def list_unknown(
    session: Session,
    task_id: Annotated[str | None, option("--task", metavar="ID", help="Only of this task")] = None,
    run_id: Annotated[str | None, option("--run", metavar="ID", help="Only of this run")] = None,
    limit: Annotated[int, option(help="Maximum number, up to 1000")] = 50,
    before: Annotated[str | None, option(metavar="CURSOR", help="Next page: only effects before this one")] = None,
) -> None:
    """List attempts at effects whose outcome is unknown, newest first: the effect may or may not have happened."""
    async with session.api() as api:
        page = await api.effects.list(task_id=task_id, run_id=run_id, limit=limit, before=before)
        now = (await api.system.time()).now
    empty = "No effects of unknown outcome."
    session.show_page(page, page.effects, empty, lambda: _table(page.effects, now), before=page.next_before)


def _table(effects: list[UnknownEffect], now: datetime) -> RenderableType:
    table = grid("action", ">attempt", "task", "state", "name", "dedupe key", "unknown since")
    for each in effects:
        table.add_row(
            plain(str(each.action)),
            str(each.attempt),
            plain(str(each.task_id)),
            state(each.task_state),
            plain(str(each.name)),
            plain(str(each.dedupe_key)),
            ago(each.unknown_at, now),
        )
    return table
