"""Limits for requests that wait: claims, other long polls, and event streams.

Each holds a connection and some memory, for a minute or without end. So their number is limited, in total and per caller (a token
with all of its sessions is one caller, and so are all callers of an open server), and one caller cannot lock out the others. About
once a second, each caller's access is checked again; waiters without access are dismissed.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

from starlette.types import Receive

from treadle.model.access import Access
from treadle.model.clock import Clock
from treadle.model.errors import StoreError, TooManyWaiting
from treadle.model.text import safe_logger

CHECK_EVERY = 1.0
"""Seconds between two checks of the waiters' access."""

WATCH_AFTER = 0.1
"""Seconds after which a waiting call ends when its caller disconnects, or the server stops."""

_LOG = safe_logger("treadle.http")


class Waiter:
    """A waiting request; `dismissed` is set when its caller has lost its access."""

    __slots__ = ("access", "dismissed")

    def __init__(self, access: Access) -> None:
        self.access = access
        self.dismissed = asyncio.Event()


class Waiters:
    """The waiting requests of one server."""

    def __init__(self, clock: Clock, is_still_allowed: Callable[[Access], Awaitable[bool]], *, limit: int, limit_each: int) -> None:
        self._clock = clock
        self._is_still_allowed = is_still_allowed
        self._limit = limit
        self._limit_each = limit_each
        self._waiters: set[Waiter] = set()
        self._of_each: Counter[str | None] = Counter()
        self._checking: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._waiters)

    @contextmanager
    def join(self, access: Access) -> Iterator[Waiter]:
        """Count a waiter while the context lasts; raises `TooManyWaiting` above the limits."""
        if len(self._waiters) >= self._limit:
            raise TooManyWaiting("this server", self._limit)
        if self._of_each[access.token_id] >= self._limit_each:
            raise TooManyWaiting("one caller", self._limit_each)
        waiter = Waiter(access)
        self._waiters.add(waiter)
        self._of_each[access.token_id] += 1
        if self._checking is None:
            self._checking = asyncio.get_running_loop().create_task(self._check(), name="treadle-http-waiting")
        try:
            yield waiter
        finally:
            self._waiters.discard(waiter)
            self._of_each[access.token_id] -= 1
            if not self._of_each[access.token_id]:
                del self._of_each[access.token_id]
            if not self._waiters and self._checking is not None:
                self._checking.cancel()
                self._checking = None

    async def _check(self) -> None:
        while True:
            await self._clock.sleep(CHECK_EVERY)
            for access in {waiter.access for waiter in self._waiters}:
                try:
                    allowed = await self._is_still_allowed(access)
                except StoreError as error:
                    _LOG.warning("cannot check the access of waiting requests: %s", error)
                    break
                if not allowed:
                    for waiter in [waiter for waiter in self._waiters if waiter.access == access]:
                        waiter.dismissed.set()


async def gone(receive: Receive) -> Any:
    """Wait until the caller disconnects."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def first_of(first: Coroutine[Any, Any, Any], *others: Coroutine[Any, Any, Any]) -> None:
    """Run all until one returns, and cancel the others; raises the error of the first, which is the pump of a stream."""
    working = [asyncio.create_task(each) for each in (first, *others)]
    try:
        await asyncio.wait(working, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for each in working:
            each.cancel()
        await asyncio.wait(working)
    if not working[0].cancelled():
        working[0].result()
