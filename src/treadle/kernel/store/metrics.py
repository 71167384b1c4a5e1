"""The port for roll-ups: transitions counted by minute, hour and day. Units write them (`PutMetrics`)."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from treadle.kernel.store.database import Port

MINUTE, HOUR, DAY = 60_000, 3_600_000, 86_400_000
STEPS = (MINUTE, HOUR, DAY)
"""The steps of stored roll-ups, in milliseconds."""

_decoder = msgspec.json.Decoder(list[dict[int, int]])


def _decode_histograms(text: str) -> list[dict[int, int]]:
    """Decode histograms; those of a step and label are empty if one of them is damaged."""
    try:
        return _decoder.decode(text)
    except msgspec.DecodeError:
        return []


class TransitionPage(NamedTuple):
    """The next transitions after a seq: the last one that is old enough, if any, and the number of all, up to the limit."""

    until_seq: int | None
    until_at: int | None
    size: int


class Tally(NamedTuple):
    """The number of transitions of one series with one outcome, and with equal durations, within one minute."""

    began_at: int | None
    """The minute in which these attempts began; None for transitions that count no attempt."""
    at: int
    namespace: str
    kind: str
    task_list: str
    name: str
    release: str
    outcome: str
    """A final state, `retry`, `expire`, `start` (of a run of a workflow) or `usage` (of models by tasks that ended)."""
    took_for: int | None
    """Rounded down to two digits."""
    wait_for: int | None
    times: int
    waited_for: int | None
    """The longest wait, exactly."""
    cost_micros: int
    tokens: int


class MetricFilter(msgspec.Struct, frozen=True):
    """The roll-ups to add up: of one stored step and a range, by longer steps and by one property; None means any."""

    namespace: str
    since: int
    until: int
    step_for: int
    every: int
    by: str
    """`all`, `handler`, `workflow`, `queue` or `release`."""
    name: str | None = None
    task_list: str | None = None
    release: str | None = None


class MetricsStore(Port):
    """Roll-ups of transitions. Those of pruned tasks stay."""

    async def find_cursor(self) -> int:
        """Return the seq up to which transitions are in the roll-ups."""
        rows = await self._database.fetch("find_metrics_cursor")
        return int(rows[0][0]) if rows else 0

    async def find_page(self, after_seq: int, limit: int, settle_for: int) -> TransitionPage:
        """Find the first `limit` transitions after a seq, and the last of them that is at least `settle_for` old."""
        (row,) = await self._database.fetch("find_page", after_seq=after_seq, limit=limit, settle_for=settle_for)
        return TransitionPage(*row)

    async def tally(self, after_seq: int, until_seq: int) -> list[Tally]:
        """Count the transitions after a seq and up to another by minute, series, outcome and duration.

        Reads all of these transitions, so callers bound the range. Excludes transitions of pruned tasks and runs.
        """
        return [Tally(*row) for row in await self._database.fetch("tally", after_seq=after_seq, until_seq=until_seq)]

    async def list_matching(self, which: MetricFilter) -> list[tuple[Any, ...]]:
        """Return the sums: step, label, counts in the order of a `MetricRow`, and lists of histograms."""
        rows = await self._database.fetch("list_metrics", **msgspec.structs.asdict(which))
        return [(*row[:-2], _decode_histograms(row[-2]), _decode_histograms(row[-1])) for row in rows]

    async def list_releases(self, which: MetricFilter) -> list[tuple[str, int]]:
        """Return the releases with roll-ups in the range, each with its first step, in order of time."""
        rows = await self._database.fetch("list_releases", **msgspec.structs.asdict(which))
        return [(release, at) for release, at in rows]
