"""A clock that stands still until a test moves it."""

from __future__ import annotations

import asyncio
import heapq
from itertools import count

from treadle.model.clock import Duration, milliseconds

START_AT = 1_800_000_000_000
"""Where a manual clock starts unless told otherwise: 15 January 2027, 08:00 UTC."""


class ManualClock:
    """Implements `treadle.model.clock.Clock`; time passes only in `advance`, so that tests need no sleeps.

    Reading it is safe in any thread, and so is `advance`, which wakes sleepers of whatever event loop they are on.
    """

    def __init__(self, at: int = START_AT) -> None:
        self._start_at = at
        self._at = at
        self._sleepers: list[tuple[int, int, asyncio.Future[None]]] = []
        self._turns = count()

    def now(self) -> int:
        """The wall clock, in milliseconds since 1970 UTC."""
        return self._at

    def monotonic(self) -> float:
        """Seconds since the clock was made."""
        return (self._at - self._start_at) / 1000

    async def sleep(self, seconds: float) -> None:
        """Return once the clock has been advanced by `seconds`; zero or less only lets others run."""
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        awake = asyncio.get_running_loop().create_future()
        due_at = self._at + max(1, round(seconds * 1000))
        heapq.heappush(self._sleepers, (due_at, next(self._turns), awake))
        await awake

    @property
    def sleeping(self) -> int:
        """How many sleepers there are: a test may await this before it advances."""
        return sum(not awake.done() for _, _, awake in self._sleepers)

    def advance(self, duration: Duration) -> None:
        """Move time on by a `timedelta` or a number of seconds, at once; those whose time has come run in order of it.

        A loop that sleeps again and again is woken once, however long the step is: advance in steps to see every turn.
        """
        self._at += milliseconds(duration)
        while self._sleepers and self._sleepers[0][0] <= self._at:
            awake = heapq.heappop(self._sleepers)[2]
            if not awake.get_loop().is_closed():
                awake.get_loop().call_soon_threadsafe(_wake, awake)


def _wake(awake: asyncio.Future[None]) -> None:
    if not awake.done():
        awake.set_result(None)
