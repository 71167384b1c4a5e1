"""Application state: the objects that all requests of a server share."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from typing import Any, TypeVar, cast

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.types import Receive

from treadle.api.contract import MODEL_HEADER
from treadle.engine import Engine
from treadle.engine.operations import Operations
from treadle.interfaces.http.access import Callers
from treadle.interfaces.http.broadcast import Broadcast
from treadle.interfaces.http.problems import ClientGone
from treadle.model.access import Access
from treadle.model.clock import Clock
from treadle.model.errors import StoreError, TooManyWaiting, Unauthorized
from treadle.model.text import safe_logger

T = TypeVar("T")

_ACCESS = "treadle.access"
"""The entry of a request's scope with the access of its caller."""


class AppState:
    """The state of one application; `state_of` finds it."""

    def __init__(self, engine: Engine, *, open_access: bool = False) -> None:
        self.engine = engine
        engine.kernel.open_access = open_access
        self.callers = Callers(engine, open_access=open_access)
        self.events = Broadcast(engine)
        self.waiters = Waiters(
            engine.kernel.clock,
            self.callers.is_still_allowed,
            limit=engine.kernel.settings.http_waiting,
            limit_each=engine.kernel.settings.http_waiting_each,
        )
        self.closing = asyncio.Event()
        """Set when the server stops, so that long polls and streams end."""

    async def access(self, request: Request) -> Access:
        """The caller's access, determined once per request."""
        found: Access | None = request.scope.get(_ACCESS)
        if found is None:
            found = request.scope[_ACCESS] = await self.callers.find(request)
        return found

    async def service(self, request: Request) -> Operations:
        """The contract with the access of the caller."""
        return self.service_for(request, await self.access(request))

    def service_for(self, request: Request, access: Access) -> Operations:
        """The contract with that access, restricted if the request acts for a model."""
        return Operations(self.engine, replace(access, for_model=True) if MODEL_HEADER in request.headers else access)

    async def close(self) -> None:
        """End every long poll and stream. Idempotent."""
        self.closing.set()
        await self.events.close()

    async def wait(
        self,
        access: Access,
        call: Callable[[], Awaitable[T]],
        without_waiting: Callable[[], Awaitable[T]],
        request: Request | None = None,
    ) -> T:
        """The result of a long poll; when the server stops, the result of the same call without waiting.

        Raises `TooManyWaiting` above the limits, `Unauthorized` when the caller loses its access meanwhile, and `ClientGone` when
        it closes the connection of `request`: a task claimed for it would be lost until its lease expires.
        """
        if self.closing.is_set():
            return await without_waiting()
        with self.waiters.join(access) as waiter:
            limit = asyncio.timeout(None)
            try:
                async with limit, self._watched(limit, waiter, request):
                    return await call()
            except TimeoutError:
                if not limit.expired():
                    raise
        if waiter.dismissed.is_set():
            raise Unauthorized("ended")
        if not self.closing.is_set():
            raise ClientGone()
        return await without_waiting()

    @asynccontextmanager
    async def _watched(self, limit: asyncio.Timeout, waiter: Waiter, request: Request | None) -> AsyncIterator[None]:
        """End the call inside the context when it need not wait any more, unless it is done within `WATCH_AFTER` seconds."""

        async def watch() -> None:
            ends = [self.closing.wait(), waiter.dismissed.wait(), *([] if request is None else [gone(request.receive)])]
            await first_of(*ends)
            limit.reschedule(0)

        loop, watching = asyncio.get_running_loop(), list[asyncio.Task[None]]()
        later = loop.call_later(WATCH_AFTER, lambda: watching.append(loop.create_task(watch())))
        try:
            yield
        finally:
            later.cancel()
            for each in watching:
                each.cancel()
                await asyncio.wait([each])


def state_of(of: Request | Starlette) -> AppState:
    """The state of an application, or of the application that handles a request."""
    app = of if isinstance(of, Starlette) else of.app
    return cast(AppState, app.state.treadle)


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
