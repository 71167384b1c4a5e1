"""What a server has once for all of its requests: who calls, what is told live, and that it is about to stop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, cast

from fastapi import FastAPI, Request

from treadle.engine import Engine
from treadle.http.access import Callers
from treadle.http.live import Live
from treadle.http.long_poll import Waiting
from treadle.http.problems import ClientGone
from treadle.model.access import Access
from treadle.model.errors import Unauthorized
from treadle.service import Service

T = TypeVar("T")


class AppState:
    """One for each application; `front_of(app)` finds it."""

    def __init__(self, engine: Engine, *, may_be_open: bool = True) -> None:
        self.engine = engine
        self.callers = Callers(engine, may_be_open=may_be_open)
        self.live = Live(engine)
        self.waiting = Waiting(
            engine.kernel.clock,
            self.callers.would_let_in,
            most=engine.kernel.settings.http_waiting,
            most_each=engine.kernel.settings.http_waiting_each,
        )
        self.closing = asyncio.Event()
        """Set when the server stops: whoever waits for something to happen goes home."""

    async def access(self, request: Request) -> Access:
        """What the caller may do; found out once for each request."""
        found: Access | None = getattr(request.state, "access", None)
        if found is None:
            found = request.state.access = await self.callers.find(request)
        return found

    async def service(self, request: Request) -> Service:
        """The contract as the caller may use it."""
        return Service(self.engine, await self.access(request))

    async def close(self) -> None:
        """Let everybody go who waits. Idempotent."""
        self.closing.set()
        await self.live.close()

    async def patiently(
        self,
        access: Access,
        call: Callable[[], Awaitable[T]],
        at_once: Callable[[], Awaitable[T]],
        request: Request | None = None,
    ) -> T:
        """What a call comes to that may wait; when the server stops, what the same comes to without waiting.

        `TooManyWaiting` where too many do; `Unauthorized` once the caller would not be let in any more. A caller who has gone is
        waited for no more: what would be claimed for it would be claimed for nobody. (That is heard from the request; without
        one, somebody else listens.)
        """
        with self.waiting.join(access) as waiter:
            calling = asyncio.ensure_future(call())
            closing = asyncio.ensure_future(self.closing.wait())
            dismissed = asyncio.ensure_future(waiter.dismissed.wait())
            ways: set[asyncio.Future[Any]] = {calling, closing, dismissed}
            if request is not None:
                ways.add(asyncio.ensure_future(_gone(request)))
            try:
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
                if calling.done():
                    return await calling
                if dismissed.done():
                    raise Unauthorized("ended")
                if not closing.done():
                    raise ClientGone()
            finally:
                for each in ways:
                    each.cancel()
                await asyncio.wait(ways)
        if not calling.cancelled() and calling.exception() is None:
            return calling.result()  # it came to something in that moment
        return await at_once()


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def front_of(app: FastAPI) -> AppState:
    """The front of the application."""
    return cast(AppState, app.state.front)
