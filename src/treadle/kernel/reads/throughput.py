"""How fast work gets done: what tasks came to in each minute of the last hour, in the whole store.

The moves themselves are counted, by their seqs, so the numbers are the same whichever process is asked and whoever did the
work. What has been counted is remembered: a look counts what is new, and goes on backwards for a moment where the hour has
not been reached yet. So no look takes long, whatever the history; and how far back the numbers reach is part of the answer.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from treadle.kernel.store.ports import LogStore
from treadle.kernel.store.queries import Tally
from treadle.model.clock import Clock
from treadle.model.names import DEFAULT_NAMESPACE, FUNCTION, GOAL_RUN, HANDLER, SCRIPT
from treadle.model.states import TaskState

MINUTE_FOR = 60_000
MINUTES = 60
PAGE = 5_000
"""Seqs that are counted at once."""
FAR_BEHIND = 50_000
"""When so many seqs have been given since the last look, counting begins anew: that is quicker than to catch up."""
WITHIN = 0.05
"""Seconds that a look spends on going back."""
LATE_FOR = 15.0
"""Seconds after which no move can come any more with a seq before one that was seen (D9)."""
FRESH_FOR = 2.0
"""Seconds for which a look serves all who ask."""
WORK_KINDS = frozenset({HANDLER, FUNCTION, SCRIPT, GOAL_RUN})
"""What users brought; the engine's own tasks are not counted."""


@dataclass(slots=True)
class Minute:
    """What tasks came to from `at` until a minute later."""

    at: int
    completed: int = 0
    failed: int = 0
    retried: int = 0
    """Attempts that failed and are tried again."""
    taken_over: int = 0
    """Attempts whose lease ran out."""
    waited_for: int = 0
    """The longest that a task had been due when it was first taken, of those that ended in this minute."""

    def add(self, tally: Tally) -> None:
        """Count it."""
        if tally.to_state == TaskState.COMPLETED:
            self.completed += tally.times
        elif tally.to_state == TaskState.FAILED:
            self.failed += tally.times
        elif tally.move == "retry":
            self.retried += tally.times
        elif tally.move == "expire":
            self.taken_over += tally.times
        self.waited_for = max(self.waited_for, tally.waited_for or 0)


@dataclass(frozen=True, slots=True)
class Hour:
    """The minutes, oldest first, the last one still running; what came before `since_at` has not been counted yet."""

    minutes: tuple[Minute, ...]
    since_at: int

    @property
    def whole(self) -> bool:
        """Whether all of it has been counted."""
        return self.since_at <= self.minutes[0].at


class Pace:
    """The last hour of one namespace."""

    def __init__(self, store: LogStore, clock: Clock, *, namespace: str = DEFAULT_NAMESPACE) -> None:
        self._store = store
        self._clock = clock
        self._namespace = namespace
        self._looking = asyncio.Lock()
        self._until = 0.0
        self._hour: Hour | None = None
        self._forget()

    def _forget(self) -> None:
        self._kept: dict[int, Minute] = {}
        self._first = self._last = -1  # the seqs that are in `_kept`: after the one, up to the other
        self._oldest: int | None = None
        self._marks: list[tuple[float, int]] = []

    async def last_hour(self) -> Hour:
        """The last hour as it is now; those who ask at once share a look."""
        async with self._looking:
            if self._hour is None or self._clock.monotonic() >= self._until:
                self._hour = await self._look()
                self._until = self._clock.monotonic() + FRESH_FOR
            return self._hour

    async def _look(self) -> Hour:
        began = self._clock.monotonic()
        now, last = await self._store.now(), await self._store.find_last_seq()
        start = (now // MINUTE_FOR - MINUTES + 1) * MINUTE_FOR
        if self._last < 0 or last - self._last > FAR_BEHIND:
            self._forget()
            self._first = self._last = last if self._store.seqs_in_order else max(last - PAGE, 0)
        settled = self._settled(began, last)
        if settled > self._last:
            self._keep(await self._store.tally(self._last, settled))
            self._last = settled
        while self._first > 0 and (self._oldest is None or self._oldest >= start):
            after = max(self._first - PAGE, 0)
            self._keep(await self._store.tally(after, self._first))
            self._first = after
            if self._clock.monotonic() - began > WITHIN:
                break
        self._kept = {at: minute for at, minute in self._kept.items() if at >= start}
        minutes = {at: self._copy(at) for at in range(start, now + 1, MINUTE_FOR)}
        if last > self._last:
            for tally in self._ours(await self._store.tally(self._last, last)):
                if tally.minute_at in minutes:
                    minutes[tally.minute_at].add(tally)
        reached = self._first == 0 or (self._oldest is not None and self._oldest < start)
        since_at = start if reached else min((self._oldest or now) + MINUTE_FOR, now)
        return Hour(tuple(minutes.values()), since_at)

    def _settled(self, began: float, last: int) -> int:
        """Up to which seq nothing more can come."""
        if self._store.seqs_in_order:
            return last
        self._marks.append((began, last))
        settled = [seq for at, seq in self._marks if began - at >= LATE_FOR]
        self._marks = [mark for mark in self._marks if began - mark[0] < LATE_FOR]
        return settled[-1] if settled else self._last

    def _copy(self, at: int) -> Minute:
        kept = self._kept.get(at, Minute(at))
        return Minute(at, kept.completed, kept.failed, kept.retried, kept.taken_over, kept.waited_for)

    def _keep(self, tallies: list[Tally]) -> None:
        for tally in tallies:
            self._oldest = tally.minute_at if self._oldest is None else min(self._oldest, tally.minute_at)
        for tally in self._ours(tallies):
            self._kept.setdefault(tally.minute_at, Minute(tally.minute_at)).add(tally)

    def _ours(self, tallies: list[Tally]) -> list[Tally]:
        return [each for each in tallies if each.namespace == self._namespace and each.kind in WORK_KINDS]
