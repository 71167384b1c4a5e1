"""MCP over streamable HTTP at `/mcp` of the HTTP server, for its callers: a token, a session, or anybody while no token exists.

It is stateless, so any of several processes can respond; each request looks up its caller. The SDK is imported with the first
request, because that is slow and few servers need it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from treadle.engine.operations import Operations
from treadle.interfaces.cli.host import worker_starter
from treadle.interfaces.http.access import add_oauth
from treadle.interfaces.http.app_state import AppState, state_of
from treadle.interfaces.http.middleware import BODY_OVERHEAD
from treadle.interfaces.http.problems import problem
from treadle.model.access import OPEN
from treadle.model.errors import InvalidInput

if TYPE_CHECKING:
    from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

    from treadle.interfaces.mcp.request_context import RequestContext

PATH = "/mcp"
_GRACE = 5.0
"""Seconds that work of workers which a client started gets when the server stops."""
_LOOPBACK = ("127.0.0.1", "localhost", "[::1]")


def add_mcp(app: Starlette) -> None:
    """Mount it in the application."""
    app.router.routes.append(Route(PATH, McpMount(state_of(app))))
    add_oauth(app, state_of(app).callers.issuer)


class McpMount:
    """The ASGI application at that path."""

    def __init__(self, state: AppState) -> None:
        self._state = state
        self._ready: asyncio.Future[StreamableHTTPSessionManager] | None = None
        self._lifespan_task: asyncio.Task[None] | None = None
        self._start_worker: Callable[[str], Awaitable[bool]] | None = None
        self._open = 0
        self._idle = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        if request.method != "POST":
            message = "MCP accepts only POST here: it is stateless and has no streams."
            await problem(405, "method_not_allowed", message, headers={"Allow": "POST"})(scope, receive, send)
            return
        access = await self._state.access(request)
        if self._state.closing.is_set():
            await problem(503, "server_stopping", "This server is stopping; use another one.")(scope, receive, send)
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
            self._lifespan_task = asyncio.create_task(self._keep(self._ready), name="treadle-mcp")
        return await asyncio.shield(self._ready)

    async def _keep(self, ready: asyncio.Future[StreamableHTTPSessionManager]) -> None:
        """Run the SDK's tasks in one task that lives until the server closes and the last request is done."""
        try:
            async with (
                worker_starter(self._state.engine, _GRACE) as self._start_worker,
                (manager := await asyncio.to_thread(self._make)).run(),
            ):
                ready.set_result(manager)
                await self._state.closing.wait()
                await self._idle.wait()
        except Exception as error:  # a loop's edge: pass the error to the waiters
            if ready.done():
                raise
            ready.set_exception(error)

    def _make(self) -> StreamableHTTPSessionManager:
        from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
        from mcp.shared.exceptions import MCPError
        from mcp_types import INVALID_PARAMS

        from treadle.interfaces.mcp.catalog import parse_toolsets
        from treadle.interfaces.mcp.request_context import RequestContext
        from treadle.interfaces.mcp.server import make_server

        state = self._state

        async def desk_of(ctx: Any) -> RequestContext:
            access = replace(await state.access(ctx.request), for_model=True)
            try:
                toolsets = parse_toolsets(ctx.request.query_params.get("toolsets", ""))
            except InvalidInput as error:
                raise MCPError(INVALID_PARAMS, str(error)) from error
            service = Operations(state.engine, access)
            return RequestContext(service, access, partial(state.wait, access), toolsets=toolsets, start_worker=self._start_worker)

        return StreamableHTTPSessionManager(
            make_server(desk_of), stateless=True, max_request_body_size=state.engine.kernel.settings.payload_limit + BODY_OVERHEAD
        )


async def _rebinding(request: Request) -> Any:
    """The SDK's protection against DNS rebinding; callers with a token do not need it."""
    from mcp.server.transport_security import TransportSecurityMiddleware, TransportSecuritySettings

    hosts = [name for host in _LOOPBACK for name in (host, f"{host}:*")]
    settings = TransportSecuritySettings(allowed_hosts=hosts, allowed_origins=[f"http://{host}" for host in hosts])
    return await TransportSecurityMiddleware(settings).validate_request(request, is_post=True)
