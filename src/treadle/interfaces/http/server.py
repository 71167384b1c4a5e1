"""A server in the event loop of its engine: `async with HttpServer(engine) as server: print(server.url)`.

Leaving the context stops the server: it takes no new connections, long polls and streams end immediately, and other requests have
a grace period. The caller handles signals.
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import logging
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Self

import uvicorn
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from treadle.engine import Engine
from treadle.engine.machine import SystemMachine
from treadle.engine.worker_host import BEAT_EVERY
from treadle.interfaces.http.app import make_app
from treadle.interfaces.http.app_state import state_of
from treadle.interfaces.http.namespaces import NamespaceApps
from treadle.kernel.queue.why import OPEN_SERVICE
from treadle.model.errors import MissingDependency, Refused, StoreError, TreadleError
from treadle.model.tasks import Server
from treadle.version import VERSION

GRACE = 10.0
"""Seconds that requests have to finish when the server stops."""

_KEEP_ALIVE = 30


HEAD_WITHIN = 20.0
"""Seconds from the connection, or from the first byte after an answer, to the end of the head."""

HEAD_LIMIT = 64 * 1024
"""Maximum size of a head in bytes."""

_HEAD_END = b"\r\n\r\n"


@dataclass(frozen=True, slots=True)
class HttpOptions:
    """The options of a server."""

    host: str = "127.0.0.1"
    port: int | None = None
    """0: any free port; None: `DEFAULT_PORT`, or one of the next if it is taken."""
    grace: float = GRACE
    open_access: bool = False
    """Whether callers need no token; only on loopback."""
    forwarded_allow: str = ""
    """Addresses of trusted proxies, whose `X-Forwarded-For` and `X-Forwarded-Proto` are used; comma-separated, `*`: all."""
    head_within: float = HEAD_WITHIN
    """Seconds in which the head of a request must arrive; otherwise the connection is closed."""
    log_requests: bool = False
    """Log each request at the level INFO instead of DEBUG."""


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class HttpServer:
    """The HTTP interface of an open engine, served while the context lasts."""

    url: str
    """Its URL on this machine."""
    local: bool
    """Whether only this machine reaches it."""
    open: bool
    """Whether callers need no token."""
    passed_over: int | None
    """The default port if it was taken, so that another one is used."""

    def __init__(
        self, engine: Engine, options: HttpOptions | None = None, *, more: Sequence[Callable[[Starlette], None]] = ()
    ) -> None:
        self._engine = engine
        self._options = options or HttpOptions()
        self._more = more
        self._listener: socket.socket | None = None
        self._server: _Server | None = None
        self._running: asyncio.Task[None] | None = None
        self._beating: asyncio.Task[None] | None = None
        self._id = engine.kernel.ids.new_id()
        self._namespaces: NamespaceApps | None = None

    async def listen(self) -> None:
        """Bind the address; requests are answered once the context is entered.

        Raises `Refused` (`needs_token`), or `TreadleError` (`cannot_listen`) as `listen` does.
        """
        options = self._options
        self.open = options.open_access
        self.local = is_loopback(options.host)
        if not self.local and (self.open or not await self._engine.kernel.tokens.any_live()):
            raise Refused(
                f"Other machines reach {options.host or 'every address'}: "
                + ("an open server would give them full access. " if self.open else "nobody could sign in without a token. ")
                + "Create a token first (`treadle token create NAME --scope admin`), or listen on 127.0.0.1.",
                code="needs_token",
            )
        self._listener = listen(options.host, options.port)
        self.url = url_of(self._listener)
        port = self._listener.getsockname()[1]
        self.passed_over = DEFAULT_PORT if options.port is None and port != DEFAULT_PORT else None

    def offer_sign_in(self, secret: str) -> str:
        """Return a link that signs a browser in with the token of that secret, once, within 15 minutes."""
        return f"{self.url}/sign-in?code={self.state.callers.offer_sign_in(secret)}"

    async def __aenter__(self) -> Self:
        if self._listener is None:
            await self.listen()
        assert self._listener is not None
        options = self._options
        level = logging.INFO if options.log_requests else logging.DEBUG
        app = make_app(self._engine, open_access=self.open, log_level=level, more=self._more)
        self.state = state_of(app)
        if path := self._engine.kernel.settings.directory:
            self._namespaces = NamespaceApps(app, path, lambda engine: make_app(engine, log_level=level, more=self._more))
        with suppress(MissingDependency):
            _ = self._engine.metrics  # counting starts now, not with the first request for metrics
        site: Any = app if self._namespaces is None else self._namespaces
        if options.forwarded_allow:
            site = ProxyHeadersMiddleware(site, options.forwarded_allow)
        guard = HeadGuard(site, options.head_within)
        config = uvicorn.Config(
            guard,
            http=guard.protocol,
            lifespan="off",
            ws="none",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=_KEEP_ALIVE,
            timeout_graceful_shutdown=max(round(options.grace), 1),
        )
        self._server = _Server(config)
        self._running = asyncio.create_task(self._server.serve(sockets=[self._listener]), name="treadle-http")
        if self.open:
            with suppress(StoreError):  # the next heartbeat repeats it
                await self._register("running")
            self._beating = asyncio.create_task(self._beat(), name="treadle-http-open")
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        assert self._running is not None
        self._server.should_exit = True
        await self.state.close()
        if self._namespaces is not None:
            await self._namespaces.end_waits()
        await self._running
        if self._namespaces is not None:
            await self._namespaces.close()
        if self._beating is not None:
            self._beating.cancel()
            with suppress(StoreError):
                await self._register("stopped")

    async def _beat(self) -> None:
        """Keep the record of an open server alive, so that `treadle status` shows it on any machine."""
        while True:
            await asyncio.sleep(BEAT_EVERY)
            with suppress(StoreError):
                await self._register("running")

    async def _register(self, state: str) -> None:
        machine = SystemMachine()
        await self._engine.kernel.store.servers.save(
            Server(
                id=self._id,
                name=self.url,
                host=machine.host,
                pid=machine.pid,
                version=VERSION,
                state=state,
                service_name=OPEN_SERVICE,
                namespace=self._engine.kernel.settings.namespace,
            )
        )


DEFAULT_PORT = 8787
MAX_PORT_ATTEMPTS = 10
"""Ports that are tried after the default one."""

_BACKLOG = 2048


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches the address; an empty one means every address."""
    return bool(host) and all(ipaddress.ip_address(address).is_loopback for _, address in _resolve(host))


def listen(host: str, port: int | None) -> socket.socket:
    """A socket that listens on the port, by default on the first free one; raises `TreadleError` (`cannot_listen`)."""
    family, address = _resolve(host)[0]
    last = DEFAULT_PORT + MAX_PORT_ATTEMPTS
    for wanted in range(DEFAULT_PORT, last + 1) if port is None else (port,):
        listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)  # asyncio sets TCP_NODELAY only with this protocol
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((address, wanted))
            listener.listen(_BACKLOG)
        except OSError as error:
            listener.close()
            if error.errno != errno.EADDRINUSE:
                raise TreadleError(f"Cannot listen on {host} port {wanted}: {error.strerror}.", code="cannot_listen") from None
        else:
            listener.setblocking(False)
            return listener
    problem = f"The ports from {DEFAULT_PORT} to {last} of {host} are taken" if port is None else f"Port {port} of {host} is taken"
    raise TreadleError(f"{problem}; choose another with --port (0: any free one).", code="cannot_listen")


def url_of(listener: socket.socket) -> str:
    """The URL for clients on this machine."""
    host, port = listener.getsockname()[:2]
    if (at := ipaddress.ip_address(host)).is_unspecified:  # all addresses, loopback among them
        host = "127.0.0.1" if at.version == 4 else "::1"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _resolve(host: str) -> list[tuple[int, str]]:
    """The family and address of each resolution of the name; IPv4 first, as most clients try it first for localhost."""
    try:
        resolutions = socket.getaddrinfo(host or None, 0, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise TreadleError(f"{host!r} is not an address of this machine: {error.strerror}.", code="cannot_listen") from None
    return sorted(
        ((family, str(place[0])) for family, _, _, _, place in resolutions), key=lambda resolution: resolution[0] != socket.AF_INET
    )


class HeadGuard:
    """Closes connections on which the head of a request does not arrive in time, or is too large.

    uvicorn closes connections that are idle after an answer, but waits forever for the first request and for the rest of a head,
    and one of its parsers accepts heads of any length. The middleware limits bodies, as the caller can receive an answer by then.
    The guard is the outermost application, which sees requests begin and end, and its protocol sees the bytes between them.
    """

    def __init__(self, app: ASGIApp, head_within: float) -> None:
        self._app = app
        self.connections: dict[tuple[str, int], _Connection] = {}
        """By the address of the client."""
        self.protocol = type("Connection", (_Connection,), {"guard": self, "head_within": head_within})
        """The protocol of its connections, for uvicorn."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        connection = self.connections.get(tuple(scope.get("client") or ()))
        if connection is None:
            await self._app(scope, receive, send)
            return
        connection.begin_request()
        headers = Headers(scope=scope)
        has_more = "Transfer-Encoding" in headers or headers.get("Content-Length", "0") != "0"
        is_answered = False

        async def received() -> Message:
            nonlocal has_more
            message = await receive()
            has_more = message.get("more_body", False)
            return message

        async def sent(message: Message) -> None:
            nonlocal is_answered
            await send(message)
            if message["type"] == "http.response.body" and not message.get("more_body"):
                is_answered = True
                connection.end_request(has_more=has_more)

        try:
            await self._app(scope, received, sent)
        finally:
            if not is_answered:
                connection.end_request(has_more=has_more)


class _Connection(AutoHTTPProtocol):  # type: ignore[misc,valid-type]
    guard: HeadGuard
    head_within: float
    _cut: asyncio.TimerHandle | None = None
    _is_idle = True
    """No request is being received or answered."""
    _has_more = False
    """The next bytes are the rest of a body whose request is already answered."""
    _head = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._wire = transport
        self._address = tuple(transport.get_extra_info("peername")[:2])
        self.guard.connections[self._address] = self
        self._expect()

    def data_received(self, data: bytes) -> None:
        if self._is_idle:
            if self._cut is None:
                self._expect()
            if not self._has_more:
                self._head += data
        super().data_received(data)
        if _HEAD_END in self._head:
            self.begin_request()
        elif len(self._head) > HEAD_LIMIT:
            self._close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm()
        self.guard.connections.pop(self._address, None)
        super().connection_lost(exc)

    def begin_request(self) -> None:
        """The head of a request has arrived."""
        self._is_idle, self._head = False, b""
        self._disarm()

    def end_request(self, *, has_more: bool) -> None:
        """The answer has been sent; `has_more`: the rest of the request's body may follow."""
        self._is_idle, self._has_more = True, has_more

    def _expect(self) -> None:
        self._cut = asyncio.get_running_loop().call_later(self.head_within, self._close)

    def _disarm(self) -> None:
        if self._cut is not None:
            self._cut.cancel()
            self._cut = None

    def _close(self) -> None:
        self._disarm()
        if not self._wire.is_closing():
            self._wire.close()
