"""`treadle events`: past events, and new ones as they happen."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING, Annotated

from treadle.api.wire import to_builtins
from treadle.interfaces.cli.command import option
from treadle.interfaces.cli.output.format import grid, ms, plain, state
from treadle.interfaces.cli.process.worker import announce, stop_signal
from treadle.interfaces.cli.session import Session
from treadle.model.clock import as_text

if TYPE_CHECKING:
    from rich.console import RenderableType

    from treadle.api.events import Event
    from treadle.api.facade import Api

_PAGE = 50


async def events(
    session: Session,
    follow: Annotated[bool, option("--follow", "-f", help="Continue with new events until Ctrl-C")] = False,
    after: Annotated[int | None, option(metavar="SEQ", help="Only after the event with this number; 0: from the first")] = None,
    entity: Annotated[str | None, option(help="Only of this entity: task, run, approval, ...")] = None,
    about: Annotated[str | None, option("--id", metavar="ID", help="Only of the task, run or other entity with this id")] = None,
    run: Annotated[str | None, option(metavar="ID", help="Only of this run")] = None,
    root: Annotated[str | None, option(metavar="ID", help="Only of this tree")] = None,
    move: Annotated[str | None, option(help="Only changes with this name: succeed, fail, cancel, ...")] = None,
    limit: Annotated[int, option(help="Maximum number, up to 1000; not with --follow")] = _PAGE,
) -> None:
    """Show the last events, or those after one; with --follow, print each new event as one line (or JSON object)."""
    which = {"entity": entity, "entity_id": about, "run_id": run, "root_id": root, "move": move}
    async with session.api() as api:
        if follow:
            await _follow(session, api, after, which)
            return
        page = await api.events.list(after_seq=after, limit=limit, **which)
    following = page.next_after if page.more else None
    session.show_page(page, page.events, "No events.", lambda: _table(page.events), after=following)


async def _follow(session: Session, api: Api, after: int | None, which: dict[str, str | None]) -> None:
    stop = asyncio.create_task(stop_signal().wait())

    async def show() -> None:
        async with aclosing(api.events.follow(after_seq=after, **which)) as found:
            async for event in found:
                announce(session, to_builtins(event), [_line(event)])

    showing = asyncio.create_task(show())
    await asyncio.wait([stop, showing], return_when=asyncio.FIRST_COMPLETED)
    for each in (stop, showing):
        each.cancel()
    await asyncio.wait([stop, showing])
    if not showing.cancelled():
        showing.result()


def _line(event: Event) -> str:
    by = f" by {event.actor}" if event.actor else ""
    at = as_text(ms(event.at))
    return f"{event.seq} {at} {event.entity} {event.entity_id} {event.move}: {event.from_state} -> {event.to_state}{by}"


def _table(events: list[Event]) -> RenderableType:
    table = grid(">seq", "at", "entity", "id", "move", "from", "to", "by")
    for each in events:
        table.add_row(
            str(each.seq),
            as_text(ms(each.at)),
            each.entity,
            each.entity_id,
            each.move,
            plain(each.from_state),
            state(each.to_state),
            plain(each.actor or ""),
        )
    return table
