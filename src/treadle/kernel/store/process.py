"""The seams between Treadle and its process: the system clock, the source of ids, failpoints, and the end after a failed store.

This is the only module that reads the machine's time and randomness. Failpoints are named points at which a test may stop the
process or raise: there is one between any two durable writes. In normal use a point costs one comparison; `treadle.testing` and
`TREADLE_CRASH_AT` arm them. A command that runs for long registers how the process ends when its store fails; elsewhere callers get
`StoreFailed`.
"""

from __future__ import annotations

import asyncio
import os
import random
import threading
import time
from collections.abc import Callable
from typing import Any

from treadle.model.clock import Clock
from treadle.model.errors import StoreFailed, UsedAfterFork
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


async def wait_or_sleep(event: asyncio.Event, clock: Clock, seconds: float) -> None:
    """Wait until the event is set, or until that many seconds have passed by the clock; infinity means without limit."""
    waits: list[asyncio.Future[Any]] = [asyncio.ensure_future(event.wait())]
    if seconds != float("inf"):
        waits.append(asyncio.ensure_future(clock.sleep(seconds)))
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
        await asyncio.gather(*waits, return_exceptions=True)


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


def check_process(pid: int) -> None:
    """Raise `UsedAfterFork` unless that process, which has opened something, is this one."""
    if os.getpid() != pid:
        raise UsedAfterFork


POINTS = (
    "enqueue.before_commit",
    "enqueue.after_commit",
    "claim.after",
    "handler.before",
    "handler.after",
    "stream.before_commit",
    "stream.after_commit",
    "settle.before_commit",
    "settle.after_commit",
    "operate.before_commit",
    "operate.after_commit",
    "wake.after",
    "advance.before_commit",
    "advance.after_commit",
    "function.before_commit",
    "function.after_commit",
    "leave.before_commit",
    "leave.after_commit",
    "fire.before_commit",
    "fire.after_commit",
    "effect.before_begin",
    "effect.begun",
    "effect.made",
    "effect.recorded",
    "look.before_commit",
    "look.after_commit",
    "alert.before_commit",
    "alert.after_commit",
    "metrics.before_commit",
    "metrics.after_commit",
    "external.before_start",
    "external.after_start",
    "external.after_poll",
    "thread.before_commit",
    "thread.after_commit",
    "partitions.bounded",
    "partitions.validated",
)

_armed: Callable[[str], None] | None = None


def failpoint(point: str) -> None:
    """Call the armed action, if any, with this point."""
    if _armed is not None:
        _armed(point)


def arm(action: Callable[[str], None] | None) -> None:
    """Call `action` with the name of every point that the process reaches; None disarms."""
    global _armed
    _armed = action


_end: Callable[[StoreFailed], None] | None = None


def end_with(end: Callable[[StoreFailed], None] | None) -> None:
    """Call `end` from any thread when a store of this process fails; it should not return. None removes it."""
    global _end
    _end = end


def report_failure(error: StoreFailed) -> None:
    """End the process, if it has registered how."""
    if _end is not None:
        _end(error)
