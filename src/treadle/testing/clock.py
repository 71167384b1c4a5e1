"""A clock that only a test advances."""

from __future__ import annotations

import asyncio
import heapq
import random
from itertools import count

from treadle.model.clock import Clock, Duration, milliseconds
from treadle.model.ids import uuid7

START_AT = 1_800_000_000_000
"""The default start of a manual clock: 15 January 2027, 08:00 UTC."""


class ManualClock:
    """Implements `treadle.model.clock.Clock`; time passes only in `advance`, so that tests need no sleeps.

    All methods are thread-safe; `advance` wakes sleepers on any event loop.
    """

    def __init__(self, at: int = START_AT) -> None:
        self._start_at = at
        self._at = at
        self._sleepers: list[tuple[int, int, asyncio.Future[None]]] = []
        self._turns = count()

    def now(self) -> int:
        """Return the wall clock, in milliseconds since 1970 UTC."""
        return self._at

    def monotonic(self) -> float:
        """Return the seconds since the clock was created."""
        return (self._at - self._start_at) / 1000

    async def sleep(self, seconds: float) -> None:
        """Return once the clock has advanced by `seconds`; zero or less only yields to other tasks."""
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        awake = asyncio.get_running_loop().create_future()
        due_at = self._at + max(1, round(seconds * 1000))
        heapq.heappush(self._sleepers, (due_at, next(self._turns), awake))
        await awake

    @property
    def sleeping(self) -> int:
        """Return the number of sleepers, which a test may await before it advances."""
        return sum(not awake.done() for _, _, awake in self._sleepers)

    def advance(self, duration: Duration) -> None:
        """Advance the time by a `timedelta` or a number of seconds; due sleepers wake in order.

        A loop that sleeps repeatedly wakes once, however large the step is: advance in steps to see every iteration.
        """
        self._at += milliseconds(duration)
        while self._sleepers and self._sleepers[0][0] <= self._at:
            awake = heapq.heappop(self._sleepers)[2]
            if not awake.get_loop().is_closed():
                awake.get_loop().call_soon_threadsafe(_wake, awake)


def _wake(awake: asyncio.Future[None]) -> None:
    if not awake.done():
        awake.set_result(None)


class SeededIds:
    """Implements `treadle.model.ids.Ids`: the same seed produces the same ids, in sorted order.

    Each id is at least a millisecond after the previous one, and not before `clock`, if there is one.
    """

    def __init__(self, seed: int = 0, clock: Clock | None = None) -> None:
        self._random = random.Random(seed)
        self._clock = clock
        self._at = START_AT - 1

    def new_id(self) -> str:
        """Return the next UUIDv7 of the seed."""
        self._at = max(self._at + 1, self._clock.now() if self._clock else 0)
        return uuid7(self._at, self._random.randbytes(10))

    def random(self) -> float:
        """Return the next number in [0, 1) of the seed."""
        return self._random.random()

    def secret(self) -> bytes:
        """Return the next 32 bytes of the seed; they are not secret."""
        return self._random.randbytes(32)
