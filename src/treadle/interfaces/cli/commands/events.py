"""`treadle events`: past events, and new ones as they happen."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

from treadle.api.wire import to_builtins
from treadle.interfaces.cli.calls import show
from treadle.interfaces.cli.command import option
from treadle.interfaces.cli.format import ms
from treadle.interfaces.cli.hosting import announce, stop_signal
from treadle.interfaces.cli.session import Session
from treadle.model.clock import as_text

if TYPE_CHECKING:
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
    show(session, page, datetime.min)


async def _follow(session: Session, api: Api, after: int | None, which: dict[str, str | None]) -> None:
    stop = asyncio.create_task(stop_signal().wait())

    async def print_events() -> None:
        async with aclosing(api.events.follow(after_seq=after, **which)) as found:
            async for event in found:
                announce(session, to_builtins(event), [_line(event)])

    showing = asyncio.create_task(print_events())
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
