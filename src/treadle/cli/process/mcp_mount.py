"""MCP over streamable HTTP at `/mcp` of the HTTP server, for the same callers: a token, a session, or anybody while there are none.

No sessions are kept, so that any process of several can answer; whoever calls is looked up for each request. The SDK is loaded
with the first request, as that takes long and few servers need it.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from treadle.http.app_state import AppState, state_of
from treadle.http.middleware import BODY_OVERHEAD
from treadle.http.problems import problem
from treadle.model.access import OPEN
from treadle.service import Service

if TYPE_CHECKING:
    from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

    from treadle.mcp.request_context import RequestContext

PATH = "/mcp"
_LOOPBACK = ("127.0.0.1", "localhost", "[::1]")


def add_mcp(app: Starlette) -> None:
    """Put it into the application."""
    app.router.routes.append(Route(PATH, McpMount(state_of(app))))


class McpMount:
    """The application at that path."""

    def __init__(self, state: AppState) -> None:
        self._state = state
        self._ready: asyncio.Future[StreamableHTTPSessionManager] | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._open = 0
        self._idle = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        if request.method != "POST":
            said = "MCP is spoken by POST here: no sessions and no streams are kept."
            await problem(405, "method_not_allowed", said, headers={"Allow": "POST"})(scope, receive, send)
            return
        access = await self._state.access(request)
        if self._state.closing.is_set():
            await problem(503, "server_stopping", "This server is about to stop; ask another one.")(scope, receive, send)
            return
        self._open += 1
        self._idle.clear()
        try:
            manager = await self._manager()
            if access is OPEN and (refused := await _rebinding(request)) is not None:
                await refused(scope, receive, send)
            else:
                await manager.handle_request(scope, receive, send)
        finally:
            self._open -= 1
            if not self._open:
                self._idle.set()

    async def _manager(self) -> StreamableHTTPSessionManager:
        if self._ready is None:
            self._ready = asyncio.get_running_loop().create_future()
            self._keeper = asyncio.create_task(self._keep(self._ready), name="treadle-mcp")
        return await asyncio.shield(self._ready)

    async def _keep(self, ready: asyncio.Future[StreamableHTTPSessionManager]) -> None:
        """Have the SDK's own tasks run in one that lives as long as the server does, until nobody is being answered."""
        try:
            manager = await asyncio.to_thread(self._make)
            async with manager.run():
                ready.set_result(manager)
                await self._state.closing.wait()
                await self._idle.wait()
        except Exception as error:  # a loop's edge: whoever waits for it is told
            if ready.done():
                raise
            ready.set_exception(error)

    def _make(self) -> StreamableHTTPSessionManager:
        from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

        from treadle.mcp.request_context import RequestContext
        from treadle.mcp.server import make_server

        state = self._state

        async def desk_of(ctx: Any) -> RequestContext:
            access = await state.access(ctx.request)
            return RequestContext(Service(state.engine, access), access.scopes, partial(state.wait, access))

        return StreamableHTTPSessionManager(
            make_server(desk_of), stateless=True, max_request_body_size=state.engine.kernel.settings.payload_limit + BODY_OVERHEAD
        )


async def _rebinding(request: Request) -> Any:
    """What the SDK answers to pages that made their name point here; who shows a token is not such a page."""
    from mcp.server.transport_security import TransportSecurityMiddleware, TransportSecuritySettings

    hosts = [name for host in _LOOPBACK for name in (host, f"{host}:*")]
    settings = TransportSecuritySettings(allowed_hosts=hosts, allowed_origins=[f"http://{host}" for host in hosts])
    return await TransportSecurityMiddleware(settings).validate_request(request, is_post=True)
