"""Rates and durations by handler: tasks begun, finished and failed within the last hour, and how long attempts took.

Only the newest `MOST` ends are read, so a busy store is counted over less than an hour, and the result states since when.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from treadle.kernel.reads.throughput import FRESH_FOR, WORK_KINDS
from treadle.kernel.store.ports import Store
from treadle.kernel.store.queries import TaskEnd
from treadle.model.clock import Clock
from treadle.model.names import FUNCTION
from treadle.model.states import TaskState

HOUR_FOR = 3_600_000
MOST = 10_000
"""Ends of tasks that one read covers."""


@dataclass(frozen=True, slots=True)
class HandlerRate:
    """The tasks of one handler or function since the start of the period."""

    name: str
    kind: str
    started: int
    """Tasks whose last attempt began, including those that run."""
    finished: int
    failed: int
    """Of those finished, the failed ones."""
    running: int
    """Tasks that run now; of a function, also runs that wait."""
    median_for: int | None
    """Milliseconds that an attempt, or the run of a function, took at the median; None if none has ended."""
    p95_for: int | None


@dataclass(frozen=True, slots=True)
class HandlerRates:
    """Rates by name, busiest first, counted since `since_at`."""

    since_at: int
    rates: tuple[HandlerRate, ...]


def rates_of(
    ends: Sequence[TaskEnd], running: Mapping[tuple[str, str], int], now: int, namespace: str, most: int = MOST
) -> HandlerRates:
    """Count the ends of the last hour; `running` has the tasks that run now, by kind and name."""
    since_at = now - HOUR_FOR
    if len(ends) >= most:
        since_at = max(since_at, min(end.ended_at for end in ends))
    found: dict[tuple[str, str], list[TaskEnd]] = {key: [] for key, number in running.items() if number}
    for end in ends:
        if end.namespace == namespace and end.kind in WORK_KINDS and end.ended_at >= since_at:
            found.setdefault((end.kind, end.name), []).append(end)
    rates = [_rate(kind, name, these, running.get((kind, name), 0), since_at) for (kind, name), these in found.items()]
    return HandlerRates(since_at, tuple(sorted(rates, key=lambda rate: (-rate.finished, rate.name))))


def _rate(kind: str, name: str, ends: list[TaskEnd], running: int, since_at: int) -> HandlerRate:
    began = sum(end.began_at is not None and end.began_at >= since_at for end in ends)
    took = sorted(end.ended_at - end.began_at for end in ends if end.began_at is not None)
    failed = sum(end.state == TaskState.FAILED for end in ends)
    return HandlerRate(name, kind, began + running, len(ends), failed, running, _at(took, 0.5), _at(took, 0.95))


def _at(ordered: list[int], part: float) -> int | None:
    return ordered[min(int(len(ordered) * part), len(ordered) - 1)] if ordered else None


class HandlerRateReads:
    """The rates of one namespace; concurrent callers share a read for a moment."""

    def __init__(self, store: Store, clock: Clock, *, namespace: str) -> None:
        self._store, self._clock, self._namespace = store, clock, namespace
        self._reading = asyncio.Lock()
        self._until = 0.0
        self._known: HandlerRates | None = None

    async def last_hour(self) -> HandlerRates:
        """The rates as of now."""
        async with self._reading:
            if self._known is None or self._clock.monotonic() >= self._until:
                running: dict[tuple[str, str], int] = {}
                for depth in await self._store.list_depths():
                    if depth.lane.namespace == self._namespace and depth.lane.kind in WORK_KINDS:
                        key = (depth.lane.kind, depth.lane.name)
                        parked = depth.waiting if depth.lane.kind == FUNCTION else 0
                        running[key] = running.get(key, 0) + depth.running + parked
                now = await self._store.now()
                self._known = rates_of(await self._store.list_ends(MOST), running, now, self._namespace)
                self._until = self._clock.monotonic() + FRESH_FOR
            return self._known
