"""Pure parts of metrics: counts of series, their histograms with fixed logarithmic buckets, and the rows of roll-ups.

A decade of milliseconds has 16 buckets (10, 12, 14, 16, 18, 20, 25, ... 45, 50, 60, ... 90), so a quantile is off by less than an
eighth, and histograms of equal buckets are added by bucket.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from treadle.kernel.queue.kinds import is_work
from treadle.kernel.store.metrics import STEPS, Tally
from treadle.kernel.store.units import MetricRow

WORKFLOW = "workflow"
"""The kind of series of runs of workflows; a function's runs are its tasks."""
_OUTCOMES = {
    "completed": "completed",
    "failed": "failed",
    "canceled": "canceled",
    "ignored": "canceled",
    "retry": "retried",
    "expire": "taken_over",
}


class Series(NamedTuple):
    """The properties by which transitions are counted."""

    namespace: str
    kind: str
    task_list: str
    name: str
    release: str = ""

    def label(self, by: str) -> str:
        """The property by which callers group series."""
        return {"queue": self.task_list, "release": self.release, "kind": f"{self.kind} {self.name}", "all": ""}.get(by, self.name)


class Counts(msgspec.Struct):
    """The counts of one series in one step."""

    started: int = 0
    completed: int = 0
    failed: int = 0
    canceled: int = 0
    retried: int = 0
    taken_over: int = 0
    waited_for: int = 0
    depth: int = 0
    oldest_for: int = 0
    cost_micros: int = 0
    tokens: int = 0
    durations: dict[int, int] = {}
    waits: dict[int, int] = {}

    @property
    def finished(self) -> int:
        return self.completed + self.failed + self.canceled

    def add(self, other: Counts) -> None:
        """Add other counts: depths, ages and the longest wait are the greatest ones."""
        for name in _SUMS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for name in _GREATEST:
            setattr(self, name, max(getattr(self, name), getattr(other, name)))
        merge(self.durations, (other.durations,))
        merge(self.waits, (other.waits,))


_SUMS = ("started", "completed", "failed", "canceled", "retried", "taken_over", "cost_micros", "tokens")
_GREATEST = ("waited_for", "depth", "oldest_for")
Points = dict[tuple[int, Series], Counts]
"""Counts by step and series."""


def merge(histogram: dict[int, int], others: Iterable[dict[int, int]]) -> None:
    """Add histograms to the first one."""
    for other in others:
        if not histogram:
            histogram.update(other)
            continue
        for bucket, count in other.items():
            histogram[bucket] = histogram.get(bucket, 0) + count


def _scale(duration: int) -> tuple[int, int]:
    """Return the power of ten of the duration's second digit, and the width of its bucket in units of it."""
    scale = 10 ** max(len(str(duration)) - 2, 0)
    digits = duration // scale
    return scale, 1 if digits < 10 else 2 if digits < 20 else 5 if digits < 50 else 10


def bucket_of(duration: int) -> int:
    """Return the least duration of the bucket."""
    scale, width = _scale(duration)
    digits = duration // scale
    return (digits - digits % width) * scale


def quantile(histogram: dict[int, int], part: float) -> int | None:
    """Return the duration that this part of the durations does not exceed, by interpolation within its bucket."""
    return quantiles(histogram, part)[0]


def quantiles(histogram: dict[int, int], *parts: float) -> list[int | None]:
    """Return the quantiles of these parts, in ascending order."""
    results: list[int | None] = []
    total, below = sum(histogram.values()), 0
    for bucket in sorted(histogram) if total else ():
        count = histogram[bucket]
        while len(results) < len(parts) and (rank := parts[len(results)] * total - below) <= count:
            scale, width = _scale(bucket)
            results.append(bucket + int((scale * width - 1) * rank / count))
        below += count
    return [*results, *[None] * (len(parts) - len(results))]


def fold(tallies: Iterable[Tally]) -> Points:
    """Return the counts of work by minute and series."""
    points: Points = {}
    for tally in tallies:
        if not (tally.kind == WORKFLOW or is_work(tally.kind)):
            continue
        series = Series(tally.namespace, tally.kind, tally.task_list, tally.name, tally.release)
        counts = points.setdefault((tally.at, series), Counts())
        counts.cost_micros += tally.cost_micros
        counts.tokens += tally.tokens
        if (outcome := _OUTCOMES.get(tally.outcome)) is not None:
            setattr(counts, outcome, getattr(counts, outcome) + tally.times)
        if tally.took_for is not None:
            merge(counts.durations, ({bucket_of(tally.took_for): tally.times},))
        if tally.wait_for is not None:
            merge(counts.waits, ({bucket_of(tally.wait_for): tally.times},))
            counts.waited_for = max(counts.waited_for, tally.waited_for or 0)
        begins_here = tally.outcome == "start" or (tally.outcome in ("retry", "expire") and tally.kind != "function")
        began_at = tally.at if begins_here else None if tally.kind == WORKFLOW else tally.began_at
        if began_at is not None:
            points.setdefault((began_at, series), Counts()).started += tally.times
    return points


def rows_of(points: Points, now: int, keep: Sequence[int]) -> list[MetricRow]:
    """Return the rows to add to the roll-ups of each step, without those that are older than it is kept."""
    rows = []
    for step_for, keep_for in zip(STEPS, keep, strict=True):
        steps: Points = {}
        for (at, series), counts in points.items():
            if at // step_for * step_for >= now - keep_for:
                steps.setdefault((at // step_for * step_for, series), Counts()).add(counts)
        for (at, series), counts in sorted(steps.items(), key=lambda step: step[0]):
            *numbers, durations, waits = msgspec.structs.astuple(counts)
            texts = [msgspec.json.encode(histogram).decode() for histogram in (durations, waits)]
            rows.append(MetricRow(step_for, at, *series, *numbers, *texts))
    return rows
