"""Middleware for every request: limits of size and time, a request id, security headers, and a log line.

The log contains the pattern of the route (`/v1/tasks/{task_id}`), never its values or the query: both may be secret.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Iterable
from contextlib import suppress
from http import HTTPStatus

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from treadle.interfaces.http.problems import find_handler, problem
from treadle.interfaces.http.routes import RouteTable
from treadle.model.clock import Clock
from treadle.model.ids import Ids
from treadle.model.text import safe_logger

BODY_OVERHEAD = 1024 * 1024
"""Bytes that a body may have in addition to the largest payload."""

BODY_WITHIN = 20.0
"""Seconds in which a body must arrive, plus one for each `BODY_RATE` bytes received."""

BODY_RATE = 16 * 1024

MAX_HEADERS = 100
HEADERS_LIMIT = 64 * 1024
"""Number of headers of a request, and of bytes in their names and values."""

REQUEST_ID = "X-Request-Id"
SAFE = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
}
"""Default headers of every answer."""

_SAFE = tuple((name.lower().encode(), value.encode()) for name, value in SAFE.items())
_REQUEST_ID = REQUEST_ID.lower().encode()

_RETRY_AFTER = b"1"
"""Seconds after which a caller may repeat a request that found the service unavailable, unless the answer names others."""

_LOG = safe_logger("treadle.http")
_PUBLIC_LIMITS = {"/login": 16 * 1024, "/logout": 16 * 1024}
"""Bytes of bodies that are read before the caller is known. The other public routes check a secret first or sign the body."""
_ID = re.compile(r"[A-Za-z0-9._:-]{1,100}")


class RequestMiddleware:
    """The outermost layer of the application.

    It calls the handlers of `routes` directly, as the layers of the framework would, in a fraction of their time. Requests
    without a route there go through these layers (`app`).
    """

    def __init__(
        self, app: ASGIApp, *, routes: RouteTable, clock: Clock, ids: Ids, body_limit: int, log_level: int = logging.DEBUG
    ) -> None:
        self._app = app
        self._routes = routes
        self._clock = clock
        self._ids = ids
        self._body_limit = body_limit
        self._log_level = log_level

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        sent_id = headers.get(REQUEST_ID)
        request_id = sent_id if sent_id is not None and _ID.fullmatch(sent_id) else self._ids.new_id()
        scope.setdefault("state", {})["request_id"] = request_id
        begun = self._clock.monotonic()
        status = 0

        async def sent(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = _completed(message.get("headers", ()), request_id, status)
            await send(message)

        try:
            size = sum(len(name) + len(value) for name, value in scope["headers"])
            if len(scope["headers"]) > MAX_HEADERS or size > HEADERS_LIMIT:
                text = f"A request may have up to {MAX_HEADERS} headers, of {HEADERS_LIMIT} bytes together."
                await problem(431, "headers_too_large", text)(scope, receive, sent)
                return
            limit = min(self._body_limit, _PUBLIC_LIMITS.get(scope["path"], self._body_limit))
            if (length := headers.get("Content-Length", "")).isdigit() and int(length) > limit:
                await self._refuse(scope, receive, sent, limit)
            else:
                bounded = self._bounded(receive, limit)
                route = self._routes.find(scope)
                if route is None:
                    await self._app(scope, bounded, sent)
                    return
                request = Request(scope, bounded, sent)
                try:
                    await (await route.handler(request))(scope, bounded, sent)
                except Exception as error:
                    handler = find_handler(error) if status == 0 else None
                    if handler is None:
                        raise
                    await (await handler(request, error))(scope, bounded, sent)
        except Exception as error:  # the edge of a request: the server continues with others
            _LOG.error("request %s failed: %s %s", request_id, scope["method"], _route(scope), exc_info=error)
            if status == 0:
                answer = problem(500, "internal_error", "This is a bug in Treadle; see the log of the server.")
                await answer(scope, receive, sent)
        finally:
            took_ms = (self._clock.monotonic() - begun) * 1000
            _LOG.log(self._log_level, "%s %s %d %.1f ms %s", scope["method"], _route(scope), status, took_ms, request_id)

    async def _refuse(self, scope: Scope, receive: Receive, send: Send, limit: int) -> None:
        """Refuse a body that is too large, after reading some of it: a client that is still sending does not read the answer."""
        budget, deadline = 4 * limit, self._clock.monotonic() + BODY_WITHIN
        with suppress(HTTPException):
            while budget > 0:
                message = await self._soon(receive, deadline)
                budget -= len(message.get("body", b""))
                if message["type"] != "http.request" or not message.get("more_body"):
                    break
        await problem(413, "payload_too_large", _too_large(limit))(scope, receive, send)

    def _bounded(self, receive: Receive, limit: int) -> Receive:
        """Limit the size of bodies without a Content-Length, and the time for every body."""
        count, whole, begun = 0, False, self._clock.monotonic()

        async def bounded() -> Message:
            nonlocal count, whole
            if whole:
                return await receive()  # reports a disconnect
            message = await self._soon(receive, begun + BODY_WITHIN + count / BODY_RATE)
            count += len(message.get("body", b""))
            whole = not message.get("more_body", False)
            if count > limit:
                raise HTTPException(413, _too_large(limit))
            return message

        return bounded

    async def _soon(self, receive: Receive, deadline: float) -> Message:
        """The next part of the body; 408 if it has not arrived by the deadline."""
        clock, late = self._clock, list[asyncio.Task[None]]()

        async def expire() -> None:
            await clock.sleep(deadline - clock.monotonic())
            limit.reschedule(0)

        try:
            async with asyncio.timeout(None) as limit:
                loop = asyncio.get_running_loop()
                watch = loop.call_soon(lambda: late.append(loop.create_task(expire())))  # usually it has already arrived
                try:
                    return await receive()
                finally:
                    watch.cancel()
                    for timer in late:
                        timer.cancel()
        except TimeoutError:
            raise HTTPException(408, "The body of the request arrived too slowly.", {"Connection": "close"}) from None


def _completed(given: Iterable[tuple[bytes, bytes]], request_id: str, status: int) -> list[tuple[bytes, bytes]]:
    """The headers of an answer with its request id and the defaults of those that it has not set."""
    headers = [(name, value) for name, value in given if name.lower() != _REQUEST_ID]
    named = {name.lower() for name, _ in headers}
    headers += [(_REQUEST_ID, request_id.encode()), *(default for default in _SAFE if default[0] not in named)]
    if status == HTTPStatus.SERVICE_UNAVAILABLE and b"retry-after" not in named:
        headers.append((b"retry-after", _RETRY_AFTER))
    return headers


def _too_large(limit: int) -> str:
    return f"The body may have up to {limit} bytes; TREADLE_PAYLOAD_LIMIT of the server limits payloads."


def _route(scope: Scope) -> str:
    """The pattern of the route; `-` if there is none."""
    return getattr(scope.get("route"), "path", "-")
