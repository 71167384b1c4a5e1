"""Traces: everything that followed from one start, as bars on one time axis."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from starlette.responses import Response

from treadle.api.traces import Trace, TraceEntry
from treadle.interfaces.web.forms import text
from treadle.interfaces.web.site import Visit, page
from treadle.interfaces.web.waterfall import WIDTH, Bar

_LIMIT = 200
_PAGES = {"run": "/runs/", "task": "/tasks/", "approval": "/approvals/", "external_job": "/external-jobs/"}


@dataclass(frozen=True, slots=True)
class Row:
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


def _rows(trace: Trace) -> list[Row]:
    entries = trace.entries
    return [Row(each, _href(each), _bars(each, trace), _took(each, trace), _below(entries, at)) for at, each in enumerate(entries)]


def _below(entries: list[TraceEntry], at: int) -> int:
    count = 0
    for each in entries[at + 1 :]:
        if each.depth <= entries[at].depth:
            break
        count += 1
    return count


def _is_hidden(row: Row, trace: Trace, closed: set[str]) -> bool:
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
    return max((_end(trace) - trace.began_at) / timedelta(milliseconds=1), 1.0)


def _ticks(trace: Trace) -> list[int]:
    return [round(_whole(trace) * part / 4) for part in range(5)] if trace.entries else []


def _took(entry: TraceEntry, trace: Trace) -> int:
    return round(((entry.ended_at or trace.now) - (entry.began_at or entry.created_at)) / timedelta(milliseconds=1))


def _bars(entry: TraceEntry, trace: Trace) -> tuple[Bar, ...]:
    spans: list[tuple[str, datetime, datetime | None]] = [(each.kind, each.began_at, each.ended_at) for each in entry.spans]
    if not spans:
        kind = {"approval": "approval", "external_job": "outside", "step": "running", "group": "mixed"}.get(entry.kind, "step")
        spans = [(kind, entry.began_at or entry.created_at, entry.ended_at)]
    whole = _whole(trace)

    def place(at: datetime) -> int:
        return min(max(round((at - trace.began_at) / timedelta(milliseconds=1) / whole * WIDTH), 0), WIDTH)

    return tuple(
        Bar(
            (kind if until else f"{kind} live") + (" failed" if entry.state == "failed" and at == len(spans) - 1 else ""),
            min(place(since), WIDTH - 3),
            max(place(until or trace.now) - place(since), 3),
            f"{kind}: {round(((until or trace.now) - since) / timedelta(milliseconds=1)):,} ms",
        )
        for at, (kind, since, until) in enumerate(spans)
    )
