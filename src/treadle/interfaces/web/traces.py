"""Traces as bars on one time axis, the timeline of a run, and the log of events."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from starlette.responses import Response

from treadle.api.steps import StepTime, Timeline
from treadle.api.traces import Trace, TraceEntry
from treadle.interfaces.web.forms import text, whole
from treadle.interfaces.web.site import Visit, page
from treadle.model.states import MACHINES

_LIMIT = 200
_PAGES = {"run": "/runs/", "task": "/tasks/", "approval": "/approvals/", "external_job": "/external-jobs/"}


@dataclass(frozen=True, slots=True)
class TraceRow:
    """An entry, its page, its bars, and the rows that follow from it."""

    entry: TraceEntry
    href: str | None
    bars: tuple[Bar, ...]
    took_for: int
    below: int
    """The number of rows that follow from it."""


@page("/traces/{any_id}")
async def trace(visit: Visit) -> Response:
    asked, any_id = visit.query, visit.path["any_id"]
    group = text(asked, "group")
    found = await visit.api.traces.get(any_id, group=group, limit=_LIMIT, after=text(asked, "after"))
    closed = {each for each in asked.getlist("closed") if each}
    rows = [row for row in _rows(found) if not _is_hidden(row, found, closed)]
    return await visit.render("trace.html", trace=found, group=group, rows=rows, ticks=_ticks(found), closed=sorted(closed))


def _rows(trace: Trace) -> list[TraceRow]:
    return [
        TraceRow(entry, _href(entry), _entry_bars(entry, trace), _took(entry, trace), _below(trace.entries, at))
        for at, entry in enumerate(trace.entries)
    ]


def _below(entries: list[TraceEntry], at: int) -> int:
    count = 0
    for each in entries[at + 1 :]:
        if each.depth <= entries[at].depth:
            break
        count += 1
    return count


def _is_hidden(row: TraceRow, trace: Trace, closed: set[str]) -> bool:
    """Whether an entry above it is closed."""
    depth = row.entry.depth
    for each in reversed(trace.entries[: trace.entries.index(row.entry)]):
        if each.depth < depth:
            if each.id in closed:
                return True
            depth = each.depth
    return False


def _href(entry: TraceEntry) -> str | None:
    if entry.kind == "step":
        return f"/runs/{entry.run_id}/steps/{entry.id}"
    return f"{_PAGES[entry.kind]}{entry.id}" if entry.kind in _PAGES else None


def _end(trace: Trace) -> datetime:
    return max(trace.ended_at or trace.now, *(each.ended_at or trace.now for each in trace.entries), trace.began_at)


def _whole(trace: Trace) -> float:
    return max((_end(trace) - trace.began_at) / _MS, 1.0)


def _ticks(trace: Trace) -> list[int]:
    return [round(_whole(trace) * part / 4) for part in range(5)] if trace.entries else []


def _took(entry: TraceEntry, trace: Trace) -> int:
    return round(((entry.ended_at or trace.now) - (entry.began_at or entry.created_at)) / _MS)


def _entry_bars(entry: TraceEntry, trace: Trace) -> tuple[Bar, ...]:
    kind = {"approval": "approval", "external_job": "outside", "step": "running", "group": "mixed"}.get(entry.kind, "step")
    spans = _spans(entry.spans) or [(kind, entry.began_at or entry.created_at, entry.ended_at)]
    return _bars(spans, entry.state, trace.began_at, _whole(trace), trace.now)


Span = tuple[str, datetime, datetime | None]


def _spans(spans: Sequence[Any]) -> list[Span]:
    return [(span.kind, span.began_at, span.ended_at) for span in spans]


def _bars(spans: list[Span], state: str, begin: datetime, whole: float, now: datetime) -> tuple[Bar, ...]:
    """The bars of spans, on a scale of `whole` milliseconds that begins at `begin`; the last one of a failure is marked."""

    def place(at: datetime) -> int:
        return min(max(round((at - begin) / _MS / whole * WIDTH), 0), WIDTH)

    return tuple(
        Bar(
            (kind if until else f"{kind} live") + (" failed" if state == "failed" and at == len(spans) - 1 else ""),
            min(place(since), WIDTH - 3),
            max(place(until or now) - place(since), 3),
            f"{kind}: {round(((until or now) - since) / _MS):,} ms",
        )
        for at, (kind, since, until) in enumerate(spans)
    )


WIDTH = 1000
_MS = timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True)
class Bar:
    """A span of one kind."""

    kind: str
    x: int
    width: int
    title: str


@dataclass(frozen=True, slots=True)
class Row:
    """A step and its bars."""

    step: StepTime
    bars: tuple[Bar, ...]
    took_for: int


@dataclass(frozen=True, slots=True)
class Waterfall:
    """Rows on one scale; `ticks` are positions on it with their offsets from the start in milliseconds."""

    rows: tuple[Row, ...]
    ticks: tuple[tuple[int, int], ...]


def waterfall(times: Timeline) -> Waterfall:
    """The bars of a page of steps."""
    if not times.steps:
        return Waterfall((), ())
    begin = min(step.began_at for step in times.steps)
    end = max(step.ended_at or times.now for step in times.steps)
    whole = max((end - begin) / _MS, 1.0)

    def bars(step: StepTime) -> tuple[Bar, ...]:
        return _bars(_spans(step.spans) or [("step", step.began_at, step.ended_at)], step.state, begin, whole, times.now)

    rows = [
        Row(step, bars(step), round(((step.ended_at or times.now) - step.began_at) / _MS))
        if step.took_for is None
        else Row(step, bars(step), step.took_for)
        for step in times.steps
    ]
    return Waterfall(tuple(rows), tuple((WIDTH * part // 4, round(whole * part / 4)) for part in range(5)))


_PAGE = 100


@page("/events")
async def events(visit: Visit) -> Response:
    asked = visit.query
    after = whole(asked, "after")
    names = ("entity", "entity_id", "run_id", "move")
    page = await visit.api.events.list(after_seq=after, limit=_PAGE, **{name: text(asked, name) for name in names})
    entity = text(asked, "entity")
    machines = [MACHINES[entity]] if entity in MACHINES else MACHINES.values()
    moves = sorted({move for machine in machines for _, move in machine.moves})
    return await visit.render(
        "events.html",
        page=page,
        entities=sorted(MACHINES),
        moves=moves,
        live=after is None and "still" not in asked,
        older=max(page.events[0].seq - _PAGE - 1, 0) if page.events and page.events[0].seq > 1 else None,
    )
