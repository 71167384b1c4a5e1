"""Throughput of the last hour: the outcomes of tasks per minute in the whole store; rates and durations by handler.

The numbers count the transitions themselves, by seq, so every process returns the same ones. Counted transitions are cached: a read
counts new transitions, and continues backwards for a moment until it has reached the full hour. So no read takes long, whatever the
history, and the result states how far back it reaches. Rates by handler read only the newest `ENDS_LIMIT` ends.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeVar

from msgspec.structs import replace

from treadle.api.handlers import HandlerRate, HandlerRates
from treadle.api.system import Throughput, ThroughputMinute
from treadle.api.wire import Instant
from treadle.kernel.core import Core, Service
from treadle.kernel.queue.kinds import is_work
from treadle.kernel.store.queries import Tally, TaskEnd
from treadle.model.clock import Clock
from treadle.model.names import FUNCTION
from treadle.model.states import TaskState

T = TypeVar("T")

MINUTE_FOR = 60_000
MINUTES = 60
PAGE = 5_000
"""Number of seqs counted per query."""
FAR_BEHIND = 50_000
"""Number of new seqs since the last read beyond which counting starts over: that is faster than catching up."""
WITHIN = 0.05
"""Seconds that a read spends on counting backwards."""
LATE_FOR = 15.0
"""Seconds after which no transition can appear with a seq before a visible one (D9)."""
FRESH_FOR = 2.0
"""Seconds for which concurrent callers share a result."""


class ThroughputReads(Service):
    """The last hour of one namespace."""

    def __init__(self, core: Core) -> None:
        super().__init__(core)
        self.last_hour = _shared(core.clock, self._read)
        """The last hour as of now; concurrent callers share a read."""
        self.rates = _shared(core.clock, self._read_rates)
        """The rates by handler as of now."""
        self._reset()

    def _reset(self) -> None:
        self._kept: dict[int, ThroughputMinute] = {}
        self._first = self._last = -1  # the seqs in `_kept`: after the first, up to the last
        self._oldest: int | None = None
        self._marks: list[tuple[float, int]] = []

    async def _read(self) -> Throughput:
        began = self._clock.monotonic()
        now, last = await self._store.now(), await self._store.log.find_last_seq()
        start = (now // MINUTE_FOR - MINUTES + 1) * MINUTE_FOR
        if self._last < 0 or last - self._last > FAR_BEHIND:
            self._reset()
            self._first = self._last = last if self._store.log.seqs_in_order else max(last - PAGE, 0)
        settled = self._settled(began, last)
        if settled > self._last:
            self._keep(await self._store.log.tally(self._last, settled))
            self._last = settled
        while self._first > 0 and (self._oldest is None or self._oldest >= start):
            after = max(self._first - PAGE, 0)
            self._keep(await self._store.log.tally(after, self._first))
            self._first = after
            if self._clock.monotonic() - began > WITHIN:
                break
        self._kept = {at: minute for at, minute in self._kept.items() if at >= start}
        minutes = {at: self._kept.get(at) or _empty(at) for at in range(start, now + 1, MINUTE_FOR)}
        if last > self._last:
            for tally in self._ours(await self._store.log.tally(self._last, last)):
                if tally.minute_at in minutes:
                    minutes[tally.minute_at] = _counted(minutes[tally.minute_at], tally)
        reached = self._first == 0 or (self._oldest is not None and self._oldest < start)
        since_at = start if reached else min((self._oldest or now) + MINUTE_FOR, now)
        return Throughput(list(minutes.values()), Instant.of(since_at))

    async def _read_rates(self) -> HandlerRates:
        running: Counter[tuple[str, str]] = Counter()
        for depth in await self._store.tasks.list_depths():
            if depth.queue.namespace == self._namespace and is_work(depth.queue.kind):
                requeued = depth.waiting if depth.queue.kind == FUNCTION else 0
                running[depth.queue.kind, depth.queue.name] += depth.running + requeued
        now = await self._store.now()
        return rates_of(await self._store.log.list_ends(ENDS_LIMIT), running, now, self._namespace)

    def _settled(self, began: float, last: int) -> int:
        """The seq up to which no further transition can appear."""
        if self._store.log.seqs_in_order:
            return last
        self._marks.append((began, last))
        settled = [seq for at, seq in self._marks if began - at >= LATE_FOR]
        self._marks = [mark for mark in self._marks if began - mark[0] < LATE_FOR]
        return settled[-1] if settled else self._last

    def _keep(self, tallies: list[Tally]) -> None:
        for tally in tallies:
            self._oldest = tally.minute_at if self._oldest is None else min(self._oldest, tally.minute_at)
        for tally in self._ours(tallies):
            self._kept[tally.minute_at] = _counted(self._kept.get(tally.minute_at) or _empty(tally.minute_at), tally)

    def _ours(self, tallies: list[Tally]) -> list[Tally]:
        return [tally for tally in tallies if tally.namespace == self._namespace and is_work(tally.kind)]


def _empty(at: int) -> ThroughputMinute:
    return ThroughputMinute(Instant.of(at), completed=0, failed=0, retried=0, taken_over=0, waited_for=0)


def _counted(minute: ThroughputMinute, tally: Tally) -> ThroughputMinute:
    """The minute with the tasks of the tally."""
    return replace(
        minute,
        completed=minute.completed + tally.times * (tally.to_state == TaskState.COMPLETED),
        failed=minute.failed + tally.times * (tally.to_state == TaskState.FAILED),
        retried=minute.retried + tally.times * (tally.transition == "retry"),
        taken_over=minute.taken_over + tally.times * (tally.transition == "expire"),
        waited_for=max(minute.waited_for, tally.waited_for or 0),
    )


HOUR_FOR = 3_600_000
ENDS_LIMIT = 10_000
"""Ends of tasks that one read covers."""


def rates_of(
    ends: Sequence[TaskEnd], running: Mapping[tuple[str, str], int], now: int, namespace: str, most: int = ENDS_LIMIT
) -> HandlerRates:
    """Count the ends of the last hour; `running` has the tasks that run now, by kind and name."""
    since_at = now - HOUR_FOR
    if len(ends) >= most:
        since_at = max(since_at, min(end.ended_at for end in ends))
    by_handler: dict[tuple[str, str], list[TaskEnd]] = {key: [] for key, number in running.items() if number}
    for end in ends:
        if end.namespace == namespace and is_work(end.kind) and end.ended_at >= since_at:
            by_handler.setdefault((end.kind, end.name), []).append(end)
    rates = [_rate(kind, name, these, running.get((kind, name), 0), since_at) for (kind, name), these in by_handler.items()]
    return HandlerRates(Instant.of(since_at), sorted(rates, key=lambda rate: (-rate.finished, rate.name)))


def _rate(kind: str, name: str, ends: list[TaskEnd], running: int, since_at: int) -> HandlerRate:
    began = sum(end.began_at is not None and end.began_at >= since_at for end in ends)
    took = sorted(end.ended_at - end.began_at for end in ends if end.began_at is not None)
    failed = sum(end.state == TaskState.FAILED for end in ends)
    return HandlerRate(name, kind, began + running, len(ends), failed, running, _at(took, 0.5), _at(took, 0.95))


def _at(ordered: list[int], part: float) -> int | None:
    return ordered[min(int(len(ordered) * part), len(ordered) - 1)] if ordered else None


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
