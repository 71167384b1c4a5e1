"""Application state: the objects that all requests of a server share."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, TypeVar, cast

from starlette.applications import Starlette
from starlette.requests import Request

from treadle.api.contract import MODEL_HEADER
from treadle.engine import Engine
from treadle.http.access import Callers
from treadle.http.broadcast import Broadcast
from treadle.http.long_poll import Waiters
from treadle.http.problems import ClientGone
from treadle.model.access import Access
from treadle.model.errors import Unauthorized
from treadle.service import Service

T = TypeVar("T")


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
        found: Access | None = getattr(request.state, "access", None)
        if found is None:
            found = request.state.access = await self.callers.find(request)
        return found

    async def service(self, request: Request) -> Service:
        """The contract with the access of the caller."""
        return self.service_for(request, await self.access(request))

    def service_for(self, request: Request, access: Access) -> Service:
        """The contract with that access, restricted if the request acts for a model."""
        return Service(self.engine, replace(access, for_model=True) if MODEL_HEADER in request.headers else access)

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
        with self.waiters.join(access) as waiter:
            calling = asyncio.ensure_future(call())
            closing = asyncio.ensure_future(self.closing.wait())
            dismissed = asyncio.ensure_future(waiter.dismissed.wait())
            tasks: set[asyncio.Future[Any]] = {calling, closing, dismissed}
            if request is not None:
                tasks.add(asyncio.ensure_future(_gone(request)))
            try:
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                if calling.done():
                    return await calling
                if dismissed.done():
                    raise Unauthorized("ended")
                if not closing.done():
                    raise ClientGone()
            finally:
                for each in tasks:
                    each.cancel()
                await asyncio.wait(tasks)
        if not calling.cancelled() and calling.exception() is None:
            return calling.result()  # it finished in that moment
        return await without_waiting()


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def state_of(of: Request | Starlette) -> AppState:
    """The state of an application, or of the application that handles a request."""
    app = of if isinstance(of, Starlette) else of.app
    return cast(AppState, app.state.treadle)
