"""Application state: the objects that all requests of a server share."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TypeVar, cast

from starlette.applications import Starlette
from starlette.requests import Request

from treadle.api.contract import MODEL_HEADER
from treadle.engine import Engine
from treadle.engine.operations import Operations
from treadle.interfaces.http.access import Callers
from treadle.interfaces.http.broadcast import Broadcast
from treadle.interfaces.http.long_poll import WATCH_AFTER, Waiter, Waiters, first_of, gone
from treadle.interfaces.http.problems import ClientGone
from treadle.model.access import Access
from treadle.model.errors import Unauthorized

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
