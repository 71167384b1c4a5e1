"""`treadle stream`: the streams of a run or a task, and their entries as they are written."""

from __future__ import annotations

import asyncio
import sys
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Annotated

from treadle.api.wire import to_builtins
from treadle.interfaces.cli.calls import show
from treadle.interfaces.cli.command import argument, option
from treadle.interfaces.cli.hosting import stop_signal
from treadle.interfaces.cli.session import Session
from treadle.model.errors import NotFound
from treadle.model.text import json_text, printable

if TYPE_CHECKING:
    from treadle.api.facade import Api
    from treadle.api.streams import StreamEntry


async def stream(
    session: Session,
    work: Annotated[str, argument(metavar="ID", help="The run, or a task")],
    name: Annotated[str | None, argument(metavar="NAME", help="The stream; without it, the streams are listed")] = None,
    offset: Annotated[int, option("--from", metavar="OFFSET", help="Start at this offset")] = 0,
    follow: Annotated[bool, option("--follow", "-f", help="Continue with new entries until the work has ended, or Ctrl-C")] = False,
) -> None:
    """List the streams of a run, or print one: text as it is, other entries and notices on lines of their own."""
    async with session.api() as api:
        if name is None:
            found = await api.streams.list(work)
            now = (await api.system.time()).now
            show(session, found, now)
        elif follow:
            await _follow(session, api, work, name, offset)
            await _tell_successor(api, work, name)
        else:
            await _print(session, api, work, name, offset)


async def _tell_successor(api: Api, work: str, name: str) -> None:
    with suppress(NotFound):  # a task
        if (current := (await api.runs.get(work)).continued_as) is not None:
            sys.stderr.write(f"The run continued as {current}: `treadle stream {current} {name} --follow`\n")


async def _print(session: Session, api: Api, work: str, name: str, offset: int) -> None:
    printer = _Printer(session)
    while True:
        page = await api.streams.read(work, name, offset=offset)
        for entry in page.entries:
            printer.print(entry)
        if not (page.entries or page.ended or page.next_offset):
            sys.stderr.write(f"There is no stream {name!r} yet; as the work has not ended, `--follow` can wait for it.\n")
        offset = page.next_offset
        if not page.entries:
            printer.end()
            return


async def _follow(session: Session, api: Api, work: str, name: str, offset: int) -> None:
    stop = asyncio.create_task(stop_signal().wait())
    printer = _Printer(session)

    async def print_entries() -> None:
        async with aclosing(api.streams.follow(work, name, offset=offset)) as entries:
            async for entry in entries:
                printer.print(entry)

    showing = asyncio.create_task(print_entries())
    await asyncio.wait([stop, showing], return_when=asyncio.FIRST_COMPLETED)
    for each in (stop, showing):
        each.cancel()
    await asyncio.wait([stop, showing])
    printer.end()
    if not showing.cancelled():
        showing.result()


class _Printer:
    """Prints entries immediately: one JSON object per line, or text as it is."""

    def __init__(self, session: Session) -> None:
        self._json = session.json
        self._within_line = False

    def print(self, entry: StreamEntry) -> None:
        if self._json:
            sys.stdout.write(json_text(to_builtins(entry)) + "\n")
        elif entry.kind == "entry" and isinstance(entry.value, str):
            sys.stdout.write(printable(entry.value, "\n\t"))
            self._within_line = not entry.value.endswith("\n") if entry.value else self._within_line
        else:
            self.end()
            sys.stdout.write((json_text(entry.value) if entry.kind == "entry" else notice(entry)) + "\n")
        sys.stdout.flush()

    def end(self) -> None:
        """End the line."""
        if self._within_line:
            sys.stdout.write("\n")
            self._within_line = False
            sys.stdout.flush()


def notice(entry: StreamEntry) -> str:
    """A notice for people."""
    if entry.kind == "abandoned":
        before, since = entry.value["generation"], entry.value["since"]
        return f"[attempt {entry.generation} begins: attempt {before} was abandoned, from offset {since} on]"
    if entry.kind == "truncated":
        return "[the stream was full: entries are missing here]"
    return f"[{printable(str(entry.value['message']))}]"
