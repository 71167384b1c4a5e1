"""The timeline of a run as bars, at positions from 0 to 1000 on one scale, which a page can draw without scripts."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from treadle.api.steps import StepTime, Timeline

WIDTH = 1000


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
    whole = max((end - begin) / timedelta(milliseconds=1), 1.0)

    def place(at: datetime) -> int:
        return round((at - begin) / timedelta(milliseconds=1) / whole * WIDTH)

    def bars(step: StepTime) -> tuple[Bar, ...]:
        found: list[tuple[str, datetime, datetime | None]] = [(each.kind, each.began_at, each.ended_at) for each in step.spans]
        spans = found or [("step", step.began_at, step.ended_at)]
        return tuple(
            Bar(
                (kind if until else f"{kind} live") + (" failed" if step.state == "failed" and at == len(spans) - 1 else ""),
                min(place(since), WIDTH - 3),
                max(place(until or times.now) - place(since), 3),
                f"{kind}: {round(((until or times.now) - since) / timedelta(milliseconds=1)):,} ms",
            )
            for at, (kind, since, until) in enumerate(spans)
        )

    rows = [
        Row(step, bars(step), round(((step.ended_at or times.now) - step.began_at) / timedelta(milliseconds=1)))
        if step.took_for is None
        else Row(step, bars(step), step.took_for)
        for step in times.steps
    ]
    return Waterfall(tuple(rows), tuple((WIDTH * part // 4, round(whole * part / 4)) for part in range(5)))
