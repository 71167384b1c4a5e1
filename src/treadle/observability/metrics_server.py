"""`/metrics` for a process without an HTTP server, such as a worker: plain HTTP, one response per connection.

On a loopback address it answers everyone; on any other it requires a token with the scope `read` (`Authorization: Bearer ...`).
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from treadle.kernel.telemetry.events import LoopError, MetricsServed
from treadle.model.access import Scope
from treadle.model.errors import Forbidden, InvalidInput, StoreError, Unauthorized

if TYPE_CHECKING:
    from treadle.kernel.access.tokens import Tokens
    from treadle.kernel.telemetry.events import Emit
    from treadle.observability.metrics import Metrics

READ_WITHIN = 5.0
"""Seconds that a client gets to send its request, and to receive the response."""
HEAD_LIMIT = 8 * 1024
PORTS_TRIED = 20
"""Ports to try from the configured one on: several processes of a host may share a configuration."""

_REASONS = {200: "OK", 400: "Bad Request", 401: "Unauthorized", 403: "Forbidden", 404: "Not Found", 405: "Method Not Allowed"}
_UNAVAILABLE = 503


def parse_address(text: str) -> tuple[str, int]:
    """Parse `9464`, `127.0.0.1:9464` or `[::1]:9464`; the default host is 127.0.0.1."""
    host, _, port = text.strip().rpartition(":")
    if not port.isascii() or not port.isdigit() or len(port) > 5 or int(port) > 65_535:
        raise InvalidInput(f"TREADLE_METRICS_ADDRESS must be a port or HOST:PORT, such as 127.0.0.1:9464, not {text!r}.")
    return host.strip("[]") or "127.0.0.1", int(port)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach that address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


@asynccontextmanager
async def serve_metrics(metrics: Metrics, tokens: Tokens, emit: Emit, address: str) -> AsyncIterator[str]:
    """Serve the metrics at that address until the context ends; yield the URL."""
    host, port = parse_address(address)
    responder = _Responder(metrics, tokens, emit, open_to_all=is_loopback(host))
    server = await _listen(responder, host, port)
    bound = server.sockets[0].getsockname()[1]
    url = f"http://{f'[{host}]' if ':' in host else host}:{bound}/metrics"
    emit(MetricsServed(url))
    try:
        yield url
    finally:
        server.close()
        await responder.close()


async def _listen(responder: _Responder, host: str, port: int) -> asyncio.Server:
    for each in range(port, port + (PORTS_TRIED if port else 1)):
        try:
            return await asyncio.start_server(responder.answer, host, each, limit=HEAD_LIMIT)
        except OSError as error:
            problem = error
    raise InvalidInput(f"Metrics cannot be served at {host}:{port}, nor at the {PORTS_TRIED - 1} ports after it: {problem}.")


class _Responder:
    """Answers connections."""

    def __init__(self, metrics: Metrics, tokens: Tokens, emit: Emit, *, open_to_all: bool) -> None:
        self._metrics = metrics
        self._tokens = tokens
        self._emit = emit
        self._open_to_all = open_to_all
        self._answering: set[asyncio.Task[None]] = set()

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one request and close the connection."""
        task = asyncio.current_task()
        assert task is not None
        self._answering.add(task)
        try:
            async with asyncio.timeout(READ_WITHIN):
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            status, content_type, body = await self._respond(head)
            reason = _REASONS.get(status, "Service Unavailable")
            extra = "WWW-Authenticate: Bearer\r\n" if status == 401 else ""
            head = f"HTTP/1.1 {status} {reason}\r\nContent-Type: {content_type}\r\nContent-Length: {len(body)}\r\n{extra}"
            writer.write(f"{head}Connection: close\r\n\r\n".encode() + body)
            async with asyncio.timeout(READ_WITHIN):
                await writer.drain()
        except (TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ConnectionError):
            pass  # the client sends no request, or does not read
        except Exception as error:
            self._emit(LoopError("metrics", repr(error)))
        finally:
            writer.close()
            self._answering.discard(task)

    async def close(self) -> None:
        """Cancel the responses in progress."""
        for task in (*self._answering,):
            task.cancel()
        await asyncio.gather(*self._answering, return_exceptions=True)

    async def _respond(self, head: str) -> tuple[int, str, bytes]:
        first, *lines = head.rstrip("\r\n").split("\r\n")
        words = first.split(" ")
        if len(words) != 3:
            return _plain(400, "The request is malformed.")
        method, path, _ = words
        if path.partition("?")[0] != "/metrics":
            return _plain(404, "Only /metrics is served here.")
        if method not in ("GET", "HEAD"):
            return _plain(405, "Read metrics with GET.")
        headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        if (refused := await self._refused(headers.get("authorization", ""))) is not None:
            return refused
        body, content_type = await self._metrics.render(headers.get("accept"))
        return 200, content_type, b"" if method == "HEAD" else body

    async def _refused(self, authorization: str) -> tuple[int, str, bytes] | None:
        if self._open_to_all:
            return None
        kind, _, secret = authorization.partition(" ")
        try:
            if kind.lower() != "bearer":
                return _plain(401, "Send a token: Authorization: Bearer ...")
            (await self._tokens.find_access(secret.strip())).check(Scope.READ)
        except Unauthorized:
            return _plain(401, "That token is not valid.")
        except Forbidden:
            return _plain(403, "That token does not have the scope `read`.")
        except StoreError:
            return _plain(_UNAVAILABLE, "The store does not answer, so the token cannot be checked.")
        return None


def _plain(status: int, text: str) -> tuple[int, str, bytes]:
    return status, "text/plain; charset=utf-8", f"{text}\n".encode()
