"""Traces as bars on one time axis, the timeline of a run, and the log of events."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from starlette.responses import Response

from treadle.api.contract import option_fields
from treadle.api.events import EventConditions
from treadle.api.steps import TimeSpan
from treadle.api.traces import Trace, TraceEntry
from treadle.interfaces.web.forms import arguments_of, text, whole
from treadle.interfaces.web.site import Visit, page
from treadle.model.states import MACHINES

_LIMIT = 200
_PAGES = {"run": "/runs/", "task": "/tasks/", "approval": "/approvals/", "external_job": "/external-jobs/"}


WIDTH = 1000
MS = timedelta(milliseconds=1)
Spans = list[tuple[str, datetime, datetime | None]]
"""The kind, the begin and the end of each span."""


@dataclass(frozen=True, slots=True)
class Bar:
    """A span of one kind."""

    kind: str
    x: int
    width: int
    title: str


@dataclass(frozen=True, slots=True)
class TraceRow:
    """An entry of a trace, with its bars, its page and the number of rows that follow from it."""

    subject: Any
    bars: tuple[Bar, ...]
    took_for: int
    href: str | None = None
    below: int = 0


@dataclass(frozen=True, slots=True)
class Scale:
    """A time axis of `whole` milliseconds that begins at `begin`."""

    begin: datetime
    whole: float
    now: datetime

    @property
    def ticks(self) -> list[int]:
        """The labels of the axis: milliseconds from its begin."""
        return [round(self.whole * part / 4) for part in range(5)]

    def bars(self, spans: Spans, state: str) -> tuple[Bar, ...]:
        """The bars of spans; the last one of a failure is marked."""
        return tuple(
            Bar(
                (kind if until else f"{kind} live") + (" failed" if state == "failed" and at == len(spans) - 1 else ""),
                min(self._place(since), WIDTH - 3),
                max(self._place(until or self.now) - self._place(since), 3),
                f"{kind}: {round(((until or self.now) - since) / MS):,} ms",
            )
            for at, (kind, since, until) in enumerate(spans)
        )

    def _place(self, at: datetime) -> int:
        return min(max(round((at - self.begin) / MS / self.whole * WIDTH), 0), WIDTH)


def spans_of(spans: Sequence[TimeSpan], kind: str, begun_at: datetime, ended_at: datetime | None) -> Spans:
    """The spans of a step or an entry; without any, it is one span of that kind."""
    return [(span.kind, span.began_at, span.ended_at) for span in spans] or [(kind, begun_at, ended_at)]


@page("/traces/{any_id}")
async def trace(visit: Visit) -> Response:
    query, any_id = visit.query, visit.path["any_id"]
    group = text(query, "group")
    trace = await visit.api.traces.get(any_id, group=group, limit=_LIMIT, after=text(query, "after"))
    closed = {entry_id for entry_id in query.getlist("closed") if entry_id}
    scale = _scale(trace)
    rows = [_row(trace, at, scale) for at in range(len(trace.entries)) if not _is_hidden(trace.entries, at, closed)]
    ticks = scale.ticks if trace.entries else []
    return await visit.render("trace.html", trace=trace, group=group, rows=rows, ticks=ticks, closed=sorted(closed))


def _scale(trace: Trace) -> Scale:
    end = max(trace.ended_at or trace.now, *(entry.ended_at or trace.now for entry in trace.entries), trace.began_at)
    return Scale(trace.began_at, max((end - trace.began_at) / MS, 1.0), trace.now)


def _row(trace: Trace, at: int, scale: Scale) -> TraceRow:
    entry = trace.entries[at]
    begun_at = entry.began_at or entry.created_at
    kind = {"approval": "approval", "external_job": "outside", "step": "running", "group": "mixed"}.get(entry.kind, "step")
    below = next(
        (count for count, later in enumerate(trace.entries[at + 1 :]) if later.depth <= entry.depth), len(trace.entries) - at - 1
    )
    page = f"{_PAGES[entry.kind]}{entry.id}" if entry.kind in _PAGES else None
    href = f"/runs/{entry.run_id}/steps/{entry.id}" if entry.kind == "step" else page
    took_for = round(((entry.ended_at or trace.now) - begun_at) / MS)
    return TraceRow(entry, scale.bars(spans_of(entry.spans, kind, begun_at, entry.ended_at), entry.state), took_for, href, below)


def _is_hidden(entries: list[TraceEntry], at: int, closed: set[str]) -> bool:
    """Whether an entry above it is closed."""
    depth = entries[at].depth
    for above in reversed(entries[:at]):
        if above.depth < depth:
            if above.id in closed:
                return True
            depth = above.depth
    return False


_PAGE = 100


@page("/events")
async def events(visit: Visit) -> Response:
    query = visit.query
    after = whole(query, "after")
    which = arguments_of(query, option_fields(EventConditions))
    page = await visit.api.events.list(after_seq=after, limit=_PAGE, **which)
    entity = which.get("entity")
    machines = [MACHINES[entity]] if entity in MACHINES else MACHINES.values()
    transitions = sorted({transition for machine in machines for _, transition in machine.transitions})
    return await visit.render(
        "events.html",
        page=page,
        entities=sorted(MACHINES),
        transitions=transitions,
        live=after is None and "still" not in query,
        older=max(page.events[0].seq - _PAGE - 1, 0) if page.events and page.events[0].seq > 1 else None,
    )
