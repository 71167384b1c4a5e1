"""Throughput of the last hour, from metrics: the outcomes of tasks per minute, and rates and durations by handler."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import TypeVar

from msgspec.structs import asdict

from treadle.api.handlers import HandlerRate, HandlerRates
from treadle.api.system import Throughput, ThroughputMinute
from treadle.api.wire import Instant
from treadle.kernel.core import Core, Service
from treadle.kernel.metrics.decide import Counts, quantile
from treadle.kernel.metrics.service import Metrics
from treadle.kernel.queue.kinds import is_work
from treadle.kernel.store.metrics import HOUR, MINUTE, MetricFilter
from treadle.model.clock import Clock
from treadle.model.names import FUNCTION

T = TypeVar("T")

FRESH_FOR = 2.0
"""Seconds for which concurrent callers share a result."""


class ThroughputReads(Service):
    """The last hour of one namespace."""

    def __init__(self, core: Core, metrics: Metrics) -> None:
        super().__init__(core)
        self._metrics = metrics
        self.last_hour = _shared(core.clock, self._read)
        """The last hour as of now; concurrent callers share a read."""
        self.rates = _shared(core.clock, self._read_rates)
        """The rates by handler as of now."""

    async def _read(self) -> Throughput:
        now = await self._store.now()
        since = now // MINUTE * MINUTE - HOUR + MINUTE
        points, counted_at = await self._metrics.read(MetricFilter(self._namespace, since, now + 1, MINUTE, MINUTE, "all"))
        minutes = []
        for at in range(since, now + 1, MINUTE):
            counts = asdict(points.get((at, ""), Counts()))
            numbers = {name: counts[name] for name in ThroughputMinute.__struct_fields__ if name != "at"}
            minutes.append(ThroughputMinute(Instant.of(at), **numbers))
        return Throughput(minutes, Instant.of(since), Instant.of(counted_at))

    async def _read_rates(self) -> HandlerRates:
        now = await self._store.now()
        since = now // MINUTE * MINUTE - HOUR + MINUTE
        points, counted_at = await self._metrics.read(MetricFilter(self._namespace, since, now + 1, MINUTE, HOUR, "kind"))
        running: Counter[str] = Counter()
        for depth in await self._store.tasks.list_depths():
            if depth.queue.namespace == self._namespace and is_work(depth.queue.kind):
                requeued = depth.waiting if depth.queue.kind == FUNCTION else 0
                running[f"{depth.queue.kind} {depth.queue.name}"] += depth.running + requeued
        totals = {label: Counts() for label, number in running.items() if number}
        for (_, label), counts in points.items():
            totals.setdefault(label, Counts()).add(counts)
        rates = [_rate(label, counts, running[label]) for label, counts in totals.items() if counts.finished or running[label]]
        return HandlerRates(Instant.of(since), Instant.of(counted_at), sorted(rates, key=lambda rate: (-rate.finished, rate.name)))


def _rate(label: str, counts: Counts, running: int) -> HandlerRate:
    kind, _, name = label.partition(" ")
    durations = (quantile(counts.durations, 0.5), quantile(counts.durations, 0.95))
    return HandlerRate(name, kind, counts.started + running, counts.finished, counts.failed, running, *durations)


def _shared(clock: Clock, read: Callable[[], Awaitable[T]]) -> Callable[[], Awaitable[T]]:
    """Return a function that reads at most once in `FRESH_FOR`; concurrent callers share the result."""
    reading = asyncio.Lock()
    cached: tuple[T, float] | None = None

    async def fresh() -> T:
        nonlocal cached
        async with reading:
            if cached is None or clock.monotonic() >= cached[1]:
                cached = await read(), clock.monotonic() + FRESH_FOR
            return cached[0]

    return fresh
