"""`treadle events`, `treadle stream` and `treadle trace`: the history, and the present."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, suppress
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated, TypeVar

from treadle.api.view import short, words
from treadle.api.wire import to_builtins
from treadle.interfaces.cli.calls import show
from treadle.interfaces.cli.command import argument, option
from treadle.interfaces.cli.format import plain
from treadle.interfaces.cli.host import announce, stop_signal
from treadle.interfaces.cli.session import CommandSession
from treadle.model.clock import span
from treadle.model.errors import NotFound
from treadle.model.text import json_text, printable

if TYPE_CHECKING:
    from rich.console import RenderableType

    from treadle.api.events import Event
    from treadle.api.facade import Api
    from treadle.api.streams import StreamEntry
    from treadle.api.traces import Trace, TraceEntry


T = TypeVar("T")

_PAGE = 50


async def events(
    session: CommandSession,
    follow: Annotated[bool, option("--follow", "-f", help="Continue with new events until Ctrl-C")] = False,
    after: Annotated[int | None, option(metavar="SEQ", help="Only after the event with this number; 0: from the first")] = None,
    entity: Annotated[str | None, option(help="Only of this entity: task, run, approval, ...")] = None,
    about: Annotated[str | None, option("--id", metavar="ID", help="Only of the task, run or other entity with this id")] = None,
    run: Annotated[str | None, option(metavar="ID", help="Only of this run")] = None,
    root: Annotated[str | None, option(metavar="ID", help="Only of this tree")] = None,
    transition: Annotated[str | None, option(help="Only changes with this name: succeed, fail, cancel, ...")] = None,
    actor: Annotated[
        str | None, option(metavar="NAME", help="Only changes by this person or program, such as a token's name")
    ] = None,
    limit: Annotated[int, option(help="Maximum number, up to 1000; not with --follow")] = _PAGE,
) -> None:
    """Show the last events, or those after one; with --follow, print each new event as one line (or JSON object)."""
    which = {"entity": entity, "entity_id": about, "run_id": run, "root_id": root, "transition": transition, "actor": actor}
    async with session.api() as api:
        if follow:
            await _follow(
                api.events.follow(after_seq=after, **which),
                lambda event: announce(session, to_builtins(event), [_line(event)]),
            )
            return
        page = await api.events.list(after_seq=after, limit=limit, **which)
    show(session, page, datetime.min)


async def _follow(items: AsyncGenerator[T, None], show_item: Callable[[T], None]) -> None:
    """Show each item until the end, SIGTERM or Ctrl-C."""

    async def show_all() -> None:
        async with aclosing(items):
            async for item in items:
                show_item(item)

    tasks = [asyncio.create_task(stop_signal().wait()), asyncio.create_task(show_all())]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    if not tasks[1].cancelled():
        tasks[1].result()


def _line(event: Event) -> str:
    by = f" by {event.actor}" if event.actor else ""
    change = f"{event.transition}: {event.from_state} -> {event.to_state}"
    return f"{event.seq} {words(event.at)} {event.entity} {event.entity_id} {change}{by}"


async def stream(
    session: CommandSession,
    work: Annotated[str, argument(metavar="ID", help="The run, or a task")],
    name: Annotated[str | None, argument(metavar="NAME", help="The stream; without it, the streams are listed")] = None,
    offset: Annotated[int, option("--from", metavar="OFFSET", help="Start at this offset")] = 0,
    follow: Annotated[bool, option("--follow", "-f", help="Continue with new entries until the work has ended, or Ctrl-C")] = False,
) -> None:
    """List the streams of a run, or print one: text as it is, other entries and notices on lines of their own."""
    async with session.api() as api:
        if name is None:
            streams = await api.streams.list(work)
            now = (await api.system.time()).now
            show(session, streams, now)
        elif follow:
            printer = _Printer(session)
            await _follow(api.streams.follow(work, name, offset=offset), printer.print)
            printer.end()
            await _print_successor(api, work, name)
        else:
            await _print_stream(session, api, work, name, offset)


async def _print_successor(api: Api, work: str, name: str) -> None:
    with suppress(NotFound):  # a task
        if (current := (await api.runs.get(work)).continued_as) is not None:
            sys.stderr.write(f"The run continued as {current}: `treadle stream {current} {name} --follow`\n")


async def _print_stream(session: CommandSession, api: Api, work: str, name: str, offset: int) -> None:
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


class _Printer:
    """Prints entries immediately: one JSON object per line, or text as it is."""

    def __init__(self, session: CommandSession) -> None:
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


_NAME, _STATE, _TOOK = 32, 17, 7
"""Widths of the columns; the bars take the rest of 80."""
_BAR = 80 - _NAME - _STATE - _TOOK - 4


async def show_trace(session: CommandSession, _: Api, trace: Trace) -> None:
    """Show everything that followed from one start on one time axis."""
    session.show_page(trace, trace.entries, "Nothing.", lambda: _timeline(trace), after=trace.next_after)


def _timeline(trace: Trace) -> RenderableType:
    end = max(trace.ended_at or trace.now, *(entry.ended_at or trace.now for entry in trace.entries))
    whole = max((end - trace.began_at) / timedelta(milliseconds=1), 1.0)
    origin = "" if trace.origin is None else f"; from {trace.origin.kind} {trace.origin.name}"
    many = "1 run or task" if trace.total == 1 else f"{trace.total} runs and tasks"
    by = f"; by {trace.created_by}" if trace.created_by and trace.origin is None else ""
    head = [f"{trace.name} {trace.state}: {many} in {span(whole)}{origin}{by}", f"id {trace.id}"]
    if trace.trace_id not in (None, trace.id):
        head[1] += f", trace {trace.trace_id}"
    rows = [_row(entry, trace, whole) for entry in trace.entries]
    notes = [f"{entry.name}: `treadle trace {trace.id} --group {entry.id}`" for entry in trace.entries if entry.kind == "group"]
    return plain("\n".join([*(short(line, 80) for line in head), "", *rows, *(["", "Groups:"] if notes else []), *notes]))


def _row(entry: TraceEntry, trace: Trace, whole: float) -> str:
    kind = "" if entry.kind in ("task", "run") else f"{entry.kind.replace('_', ' ')} "
    many = f" ×{entry.count}" if entry.kind == "group" else f" #{entry.attempt}" if (entry.attempt or 0) > 1 else ""
    name = f"{'  ' * entry.depth}{kind if entry.kind != 'group' else ''}{entry.name}{many}"
    state = entry.state.replace("_", " ")
    if entry.kind == "group" and len(entry.states) > 1:
        state = " ".join(f"{count} {member_state[:6]}" for member_state, count in entry.states.items())
    began = entry.began_at or entry.created_at
    took = span(((entry.ended_at or trace.now) - began) / timedelta(milliseconds=1))
    bar = _bar(entry, trace, whole)
    return f"{_cut(name, _NAME)} {_cut(state, _STATE)} {took:>{_TOOK}}  {bar}".rstrip()


def _bar(entry: TraceEntry, trace: Trace, whole: float) -> str:
    """The waiting time as dots, then the rest as a bar; an open one ends with an arrow."""

    def place(at: datetime) -> int:
        share = (at - trace.began_at) / timedelta(milliseconds=1) / whole
        return min(max(round(share * _BAR), 0), _BAR)

    created, end = place(entry.created_at), place(entry.ended_at or trace.now)
    began = end if entry.began_at is None else max(place(entry.began_at), created)
    bar = "█" * max(end - began, 1 if entry.began_at is not None else 0)
    if entry.ended_at is None:
        bar = f"{bar[:-1]}▶"
    return (" " * min(created, _BAR - 1) + "·" * (began - created) + bar)[:_BAR]


def _cut(text: str, width: int) -> str:
    return f"{text if len(text) <= width else f'{text[: width - 1]}…':<{width}}"
