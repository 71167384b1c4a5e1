"""Who waits at a server: claims and other long polls, and those who follow events. Bounded, and looked after while they wait.

All of them hold a connection and some memory, for a minute or without an end. So there are only so many, in all and for each
caller (a token with all of its sessions is one; so are all who call an open server): one caller too many cannot shut out the
rest. About once a second it is looked, for each caller once, whether they would still be let in: who would not waits no longer.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

from treadle.model.access import Access
from treadle.model.clock import Clock
from treadle.model.errors import StoreError, TooManyWaiting

LOOK_EVERY = 1.0
"""Seconds between two looks whether those who wait may go on waiting."""

_LOG = logging.getLogger("treadle.http")


class Waiter:
    """One who waits; `dismissed` is set when it may wait no longer."""

    __slots__ = ("access", "dismissed")

    def __init__(self, access: Access) -> None:
        self.access = access
        self.dismissed = asyncio.Event()


class Waiting:
    """Everybody who waits at one server."""

    def __init__(self, clock: Clock, still_in: Callable[[Access], Awaitable[bool]], *, most: int, most_each: int) -> None:
        self._clock = clock
        self._still_in = still_in
        self._most = most
        self._most_each = most_each
        self._waiters: set[Waiter] = set()
        self._of_each: Counter[str | None] = Counter()
        self._watch: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._waiters)

    @contextmanager
    def join(self, access: Access) -> Iterator[Waiter]:
        """Somebody waits while the context lasts; `TooManyWaiting` where too many do."""
        if len(self._waiters) >= self._most:
            raise TooManyWaiting("this server", self._most)
        if self._of_each[access.token_id] >= self._most_each:
            raise TooManyWaiting("one caller", self._most_each)
        waiter = Waiter(access)
        self._waiters.add(waiter)
        self._of_each[access.token_id] += 1
        if self._watch is None:
            self._watch = asyncio.get_running_loop().create_task(self._look_after(), name="treadle-http-waiting")
        try:
            yield waiter
        finally:
            self._waiters.discard(waiter)
            self._of_each[access.token_id] -= 1
            if not self._of_each[access.token_id]:
                del self._of_each[access.token_id]
            if not self._waiters and self._watch is not None:
                self._watch.cancel()
                self._watch = None

    async def _look_after(self) -> None:
        while True:
            await self._clock.sleep(LOOK_EVERY)
            for access in {waiter.access for waiter in self._waiters}:
                try:
                    let_in = await self._still_in(access)
                except StoreError as error:
                    _LOG.warning("it cannot be seen whether those who wait still may: %s", error)
                    break
                if not let_in:
                    for waiter in [waiter for waiter in self._waiters if waiter.access == access]:
                        waiter.dismissed.set()
