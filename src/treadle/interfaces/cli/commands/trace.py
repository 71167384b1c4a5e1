"""`treadle trace ID`: everything that followed from one start, as one timeline."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from treadle.api.view import short
from treadle.interfaces.cli.format import plain
from treadle.interfaces.cli.session import Session
from treadle.model.clock import span

if TYPE_CHECKING:
    from rich.console import RenderableType

    from treadle.api.facade import Api
    from treadle.api.traces import Trace, TraceEntry

_NAME, _STATE, _TOOK = 32, 17, 7
"""Widths of the columns; the bars take the rest of 80."""
_BAR = 80 - _NAME - _STATE - _TOOK - 4


async def show_trace(session: Session, _: Api, trace: Trace) -> None:
    """Show everything that followed from one start on one time axis."""
    session.show_page(trace, trace.entries, "Nothing.", lambda: _timeline(trace), after=trace.next_after)


def _timeline(trace: Trace) -> RenderableType:
    end = max(trace.ended_at or trace.now, *(each.ended_at or trace.now for each in trace.entries))
    whole = max((end - trace.began_at) / timedelta(milliseconds=1), 1.0)
    origin = "" if trace.origin is None else f"; from {trace.origin.kind} {trace.origin.name}"
    many = "1 run or task" if trace.total == 1 else f"{trace.total} runs and tasks"
    by = f"; by {trace.created_by}" if trace.created_by and trace.origin is None else ""
    head = [f"{trace.name} {trace.state}: {many} in {span(whole)}{origin}{by}", f"id {trace.id}"]
    if trace.trace_id not in (None, trace.id):
        head[1] += f", trace {trace.trace_id}"
    rows = [_row(each, trace, whole) for each in trace.entries]
    notes = [f"{each.name}: `treadle trace {trace.id} --group {each.id}`" for each in trace.entries if each.kind == "group"]
    return plain("\n".join([*(short(line, 80) for line in head), "", *rows, *(["", "Groups:"] if notes else []), *notes]))


def _row(entry: TraceEntry, trace: Trace, whole: float) -> str:
    kind = "" if entry.kind in ("task", "run") else f"{entry.kind.replace('_', ' ')} "
    many = f" ×{entry.count}" if entry.kind == "group" else f" #{entry.attempt}" if (entry.attempt or 0) > 1 else ""
    name = f"{'  ' * entry.depth}{kind if entry.kind != 'group' else ''}{entry.name}{many}"
    state = entry.state.replace("_", " ")
    if entry.kind == "group" and len(entry.states) > 1:
        state = " ".join(f"{count} {each[:6]}" for each, count in entry.states.items())
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
