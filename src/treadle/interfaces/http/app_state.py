"""Application state: the objects that all requests of a server share."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
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
        self.waiters = WaitingRequests(
            engine.kernel.clock,
            self.callers.is_still_allowed,
            limit=engine.kernel.settings.http_waiting,
            limit_each=engine.kernel.settings.http_waiting_each,
        )
        self.closing = asyncio.Event()
        """Set when the server stops, so that long polls and streams end."""

    async def access(self, request: Request) -> Access:
        """The caller's access, determined once per request."""
        access: Access | None = request.scope.get(_ACCESS)
        if access is None:
            access = request.scope[_ACCESS] = await self.callers.find(request)
        return access

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

        async def called() -> T:
            return await call()

        with self.waiters.join(access) as dismissed:
            ends = [self.closing.wait(), dismissed.wait(), *([] if request is None else [gone(request.receive)])]
            result: T | None = await first_of(called(), *ends)
        if result is not None:
            return result
        if dismissed.is_set():
            raise Unauthorized("ended")
        if not self.closing.is_set():
            raise ClientGone()
        return await without_waiting()


def state_of(of: Request | Starlette) -> AppState:
    """The state of an application, or of the application that handles a request."""
    app = of if isinstance(of, Starlette) else of.app
    return cast(AppState, app.state.treadle)


CHECK_EVERY = 1.0
"""Seconds between two checks of the waiters' access."""

_LOG = safe_logger("treadle.http")


class WaitingRequests:
    """The waiting requests of one server."""

    def __init__(self, clock: Clock, is_still_allowed: Callable[[Access], Awaitable[bool]], *, limit: int, limit_each: int) -> None:
        self._clock = clock
        self._is_still_allowed = is_still_allowed
        self._limit = limit
        self._limit_each = limit_each
        self._waiters: dict[asyncio.Event, Access] = {}
        """The access of each; the event is set when it has lost it."""
        self._of_each: Counter[str | None] = Counter()
        self._checking: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._waiters)

    @contextmanager
    def join(self, access: Access) -> Iterator[asyncio.Event]:
        """Count a waiter while the context lasts; yields the event of its dismissal. Raises `TooManyWaiting` above the limits."""
        if len(self._waiters) >= self._limit:
            raise TooManyWaiting("this server", self._limit)
        if self._of_each[access.token_id] >= self._limit_each:
            raise TooManyWaiting("one caller", self._limit_each)
        dismissed = asyncio.Event()
        self._waiters[dismissed] = access
        self._of_each[access.token_id] += 1
        if self._checking is None:
            self._checking = asyncio.get_running_loop().create_task(self._check(), name="treadle-http-waiting")
        try:
            yield dismissed
        finally:
            del self._waiters[dismissed]
            self._of_each[access.token_id] -= 1
            if not self._of_each[access.token_id]:
                del self._of_each[access.token_id]
            if not self._waiters and self._checking is not None:
                self._checking.cancel()
                self._checking = None

    async def _check(self) -> None:
        while True:
            await self._clock.sleep(CHECK_EVERY)
            for access in set(self._waiters.values()):
                try:
                    allowed = await self._is_still_allowed(access)
                except StoreError as error:
                    _LOG.warning("cannot check the access of waiting requests: %s", error)
                    break
                if not allowed:
                    for dismissed in [event for event, held in self._waiters.items() if held == access]:
                        dismissed.set()


async def gone(receive: Receive) -> Any:
    """Wait until the caller disconnects."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def first_of(first: Coroutine[Any, Any, T], *others: Coroutine[Any, Any, Any]) -> T | None:
    """Run all until one returns, and cancel the others; returns the result of the first, or None if it was canceled."""
    working = asyncio.create_task(first)
    everything = [working, *(asyncio.create_task(other) for other in others)]
    try:
        await asyncio.wait(everything, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in everything:
            task.cancel()
        await asyncio.wait(everything)
    return None if working.cancelled() else working.result()
