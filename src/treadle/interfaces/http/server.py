"""A server in the event loop of its engine: `async with HttpServer(engine) as server: print(server.url)`.

Leaving the context stops the server: it takes no new connections, long polls and streams end immediately, and other requests have
a grace period. The caller handles signals.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Self

import uvicorn
from starlette.applications import Starlette

from treadle.engine import Engine
from treadle.engine.wiring.machine import SystemMachine
from treadle.engine.wiring.worker_host import BEAT_EVERY
from treadle.interfaces.http.address import is_loopback, listen, url_of
from treadle.interfaces.http.app import make_app
from treadle.interfaces.http.app_state import state_of
from treadle.interfaces.http.connections import HEAD_WITHIN, connections
from treadle.interfaces.http.namespaces import NamespaceApps
from treadle.kernel.queue.why import OPEN_SERVICE
from treadle.model.errors import MissingDependency, Refused, StoreError
from treadle.model.tasks import Server
from treadle.version import VERSION

GRACE = 10.0
"""Seconds that requests have to finish when the server stops."""

_KEEP_ALIVE = 30


class NeedsToken(Refused):
    """An open server, or one without a token, was about to listen on an address that others reach."""

    code = "needs_token"


@dataclass(frozen=True, slots=True)
class HttpOptions:
    """The options of a server."""

    host: str = "127.0.0.1"
    port: int = 8787
    """0: any free port."""
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
        """Bind the address; raises `NeedsToken` or `CannotListen`. Requests are answered once the context is entered."""
        options = self._options
        self.open = options.open_access
        self.local = is_loopback(options.host)
        if not self.local and (self.open or not await self._engine.kernel.tokens.any_live()):
            raise NeedsToken(
                f"Other machines reach {options.host or 'every address'}: "
                + ("an open server would give them full access. " if self.open else "nobody could sign in without a token. ")
                + "Create a token first (`treadle token create NAME --scope admin`), or listen on 127.0.0.1."
            )
        self._listener = listen(options.host, options.port)
        self.url = url_of(self._listener)

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
        config = uvicorn.Config(
            app if self._namespaces is None else self._namespaces,
            http=connections(options.head_within),
            lifespan="off",
            ws="none",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=bool(options.forwarded_allow),
            forwarded_allow_ips=options.forwarded_allow or None,
            timeout_keep_alive=_KEEP_ALIVE,
            timeout_graceful_shutdown=max(round(options.grace), 1),
        )
        self._server = _Server(config)
        self._running = asyncio.create_task(self._server.serve(sockets=[self._listener]), name="treadle-http")
        if self.open:
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
