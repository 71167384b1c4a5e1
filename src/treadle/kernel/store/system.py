"""The system clock and the source of ids: the only module that reads the machine's time and randomness."""

from __future__ import annotations

import asyncio
import os
import random
import threading
import time

from treadle.model.ids import uuid7


class SystemClock:
    """The machine's clocks; waits on the running event loop."""

    def now(self) -> int:
        """Return the wall clock, in milliseconds."""
        return time.time_ns() // 1_000_000

    monotonic = staticmethod(time.monotonic)  # noqa: TID251
    """Return seconds that never go backwards; the function itself, because every task needs it several times."""

    async def sleep(self, seconds: float) -> None:
        """Sleep on the running event loop."""
        await asyncio.sleep(seconds)


class SystemIds:
    """UUIDv7 from the machine's time and entropy; ids of one process rise strictly, so they sort in order of creation."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._at = 0
        self._counter = 0
        self._pool = b""

    def new_id(self) -> str:
        """Return an id greater than all earlier ones of this object: within a millisecond a counter takes the first 12 bits."""
        with self._lock:
            at = time.time_ns() // 1_000_000
            if at > self._at:
                self._at, self._counter = at, 0
            else:
                self._counter += 1
                if self._counter > 0xFFF:
                    self._at, self._counter = self._at + 1, 0
            if len(self._pool) < 8:
                self._pool = os.urandom(1024)
            tail, self._pool = self._pool[:8], self._pool[8:]
            return uuid7(self._at, self._counter.to_bytes(2, "big") + tail)

    def random(self) -> float:
        """Return a random number in [0, 1)."""
        return random.random()

    def secret(self) -> bytes:
        """Return 32 bytes from the operating system's generator for secrets."""
        return os.urandom(32)
