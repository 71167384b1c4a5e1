"""A small HTTP server for processes without the `http` extra: workers serve `/metrics`, `/health` and `/live`, runners `/health`
and `/status`.

It answers one GET or HEAD request per connection. `/metrics` is open on a loopback address; on any other it needs a token with
the scope `read` (`Authorization: Bearer ...`). `/health` and `/live` need none: they tell only whether the process can work.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from http import HTTPStatus
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from treadle.kernel.telemetry.events import LoopError, MetricsServed
from treadle.model.access import Scope
from treadle.model.errors import Forbidden, InvalidInput, StoreError, TreadleError, Unauthorized

if TYPE_CHECKING:
    from treadle.engine.metrics import Metrics
    from treadle.kernel.access.tokens import Tokens
    from treadle.kernel.telemetry.events import Emit

READ_WITHIN = 5.0
"""Seconds that a client has to send its request, and to take the answer."""
ANSWER_WITHIN = 3.0
"""Seconds that the store has to answer a probe."""
HEAD_LIMIT = 8 * 1024
PORTS_TRIED = 20
"""Ports that are tried from the configured one: several processes of a host may have the same setting."""


_HEADERS = {401: "WWW-Authenticate: Bearer\r\n", 503: "Retry-After: 1\r\n"}
"""Further headers of an answer, by its status."""


class HttpReply(NamedTuple):
    """An answer."""

    status: int
    content_type: str
    body: bytes


Handler = Callable[[Mapping[str, str]], Awaitable[HttpReply]]
"""Answers a request, given its headers with names in lower case."""


class StatusServer:
    """Serves handlers by path on the running event loop."""

    port: int

    def __init__(self, routes: Mapping[str, Handler], *, on_error: Callable[[Exception], None]) -> None:
        self._routes = routes
        self._on_error = on_error
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    async def listen(self, host: str, ports: Iterable[int]) -> None:
        """Listen on the first free port; raises `OSError` if there is none."""
        failure = OSError("there is no such port")
        for port in ports:
            try:
                self._server = await asyncio.start_server(self._answer, host, port, limit=HEAD_LIMIT)
            except (OSError, OverflowError) as error:
                failure = OSError(*error.args)
            else:
                self.port = self._server.sockets[0].getsockname()[1]
                return
        raise failure

    async def close(self) -> None:
        """Stop listening and drop open connections."""
        if self._server is not None:
            self._server.close()
        for task in (*self._connections,):
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            async with asyncio.timeout(READ_WITHIN):
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            reply = await self._reply(head)
            reason, extra = HTTPStatus(reply.status).phrase, _HEADERS.get(reply.status, "")
            start = f"HTTP/1.1 {reply.status} {reason}\r\nContent-Type: {reply.content_type}\r\n{extra}"
            body = b"" if head.startswith("HEAD ") else reply.body
            writer.write(f"{start}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body)
            async with asyncio.timeout(READ_WITHIN):
                await writer.drain()
        except (TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ConnectionError):
            pass  # the client sends no request, or does not take the answer
        except Exception as error:
            self._on_error(error)
        finally:
            writer.close()
            self._connections.discard(task)

    async def _reply(self, head: str) -> HttpReply:
        first, *lines = head.rstrip("\r\n").split("\r\n")
        words = first.split(" ")
        if len(words) != 3:
            return error_reply(400, "This is not an HTTP request.")
        handler = self._routes.get(words[1].partition("?")[0])
        if handler is None:
            return error_reply(404, f"Not found. This server has only {' and '.join(self._routes)}.")
        if words[0] not in ("GET", "HEAD"):
            return error_reply(405, "Only GET and HEAD are allowed.")
        return await handler({name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)})


def error_reply(status: int, text: str) -> HttpReply:
    """A JSON object with the error."""
    return HttpReply(status, "application/json", json.dumps({"error": text}).encode())


def json_route(make: Callable[[], dict[str, Any]], healthy: str | None = None) -> Handler:
    """A handler that returns a JSON object, with status 503 if its key `healthy` is false."""

    async def handle(_: Mapping[str, str]) -> HttpReply:
        document = make()
        return HttpReply(200 if healthy is None or document[healthy] else 503, "application/json", json.dumps(document).encode())

    return handle


@asynccontextmanager
async def serve_metrics(
    metrics: Metrics, tokens: Tokens, emit: Emit, address: str, routes: Mapping[str, Handler] = MappingProxyType({})
) -> AsyncIterator[str]:
    """Serve the metrics and other `routes` at this address while the context lasts; yields the URL of the metrics."""
    host, port = parse_address(address)
    server = StatusServer(
        {"/metrics": _metrics_route(metrics, None if is_loopback(host) else tokens), **routes},
        on_error=lambda error: emit(LoopError("metrics", repr(error))),
    )
    try:
        await server.listen(host, range(port, port + (PORTS_TRIED if port else 1)))
    except OSError as error:
        last = port + PORTS_TRIED - 1
        raise InvalidInput(f"Metrics cannot be served at {host}, on no port from {port} to {last}: {error}.") from None
    url = f"http://{f'[{host}]' if ':' in host else host}:{server.port}/metrics"
    emit(MetricsServed(url))
    try:
        yield url
    finally:
        await server.close()


def probe_routes(state: Callable[[], str], now: Callable[[], Awaitable[object]]) -> dict[str, Handler]:
    """`/live`: the process answers. `/health`: its `state` is `running`, and its store answers when asked for the time."""

    async def healthy(_: Mapping[str, str]) -> HttpReply:
        status = state()
        try:
            async with asyncio.timeout(ANSWER_WITHIN):
                await now()
        except (TreadleError, TimeoutError):
            status = "no_store"  # the cause may name the store: not for anonymous callers
        return HttpReply(200 if status == "running" else 503, "application/json", json.dumps({"status": status}).encode())

    return {"/live": json_route(lambda: {"status": "ok"}), "/health": healthy}


def _metrics_route(metrics: Metrics, tokens: Tokens | None) -> Handler:
    """The metrics; with `tokens`, callers need one."""

    async def handle(headers: Mapping[str, str]) -> HttpReply:
        if tokens is not None:
            scheme, _, secret = headers.get("authorization", "").partition(" ")
            if scheme.lower() != "bearer":
                return error_reply(401, "Send a token: Authorization: Bearer ...")
            try:
                (await tokens.find_access(secret.strip())).check(Scope.READ)
            except Unauthorized:
                return error_reply(401, "The token is not valid.")
            except Forbidden:
                return error_reply(403, "The token does not have the scope read.")
            except StoreError:
                return error_reply(503, "The store does not answer, so the token cannot be checked.")
        body, content_type = await metrics.render(headers.get("accept"))
        return HttpReply(200, content_type, body)

    return handle


def parse_address(text: str) -> tuple[str, int]:
    """Host and port of `9464`, `127.0.0.1:9464` or `[::1]:9464`; a port alone is on 127.0.0.1."""
    host, _, port = text.strip().rpartition(":")
    if not port.isascii() or not port.isdigit() or len(port) > 5 or int(port) > 65_535:
        raise InvalidInput(f"TREADLE_METRICS_ADDRESS must be a port or HOST:PORT, such as 127.0.0.1:9464, not {text!r}.")
    return host.strip("[]") or "127.0.0.1", int(port)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
