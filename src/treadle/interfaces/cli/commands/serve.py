"""`treadle serve`: HTTP without a worker."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

from treadle.interfaces.cli.command import option
from treadle.interfaces.cli.engines import load_engines
from treadle.interfaces.cli.hosting import announce, calm_collector, listening, opened, stop_signal
from treadle.interfaces.cli.local_token import entrance
from treadle.interfaces.cli.messages import tell_note
from treadle.interfaces.cli.session import Session
from treadle.model.errors import MissingDependency

if TYPE_CHECKING:
    from treadle.interfaces.http.server import HttpOptions

Host = Annotated[
    str | None,
    option(
        metavar="ADDRESS", help="Address to listen on; any but loopback requires a token; default: TREADLE_HTTP_HOST or 127.0.0.1"
    ),
]
Port = Annotated[
    int | None,
    option(
        metavar="PORT",
        min=0,
        max=65535,
        help="Port, or one of the next ten if it is taken; 0: any; default: TREADLE_HTTP_PORT or 8787",
    ),
]
ForwardedAllow = Annotated[
    str,
    option(
        "--trusted-proxy",
        "--forwarded-allow",
        metavar="ADDRESSES",
        help="Proxies whose X-Forwarded-For and X-Forwarded-Proto are trusted, separated by commas; *: all; "
        "default: TREADLE_TRUSTED_PROXIES, or none",
    ),
]
Open = Annotated[
    bool, option("--open", help="Give every caller on this machine full access without a token; default: TREADLE_HTTP_OPEN or no")
]
LogRequests = Annotated[bool, option("--log-requests", help="Log each request")]

_HOW = "pip install 'treadle[http]'"


async def serve(
    session: Session,
    host: Host = None,
    port: Port = None,
    handlers: Annotated[
        list[str] | None,
        option("--handlers", metavar="MODULE", help="Modules with engines that define functions and codecs; repeatable"),
    ] = None,
    grace: Annotated[
        float, option(metavar="SECONDS", min=0, max=86_400, help="Time that requests get to finish when stopping")
    ] = 10,
    forwarded_allow: ForwardedAllow = "",
    log_requests: LogRequests = False,
    open_access: Open = False,
) -> None:
    """Migrate the store, then serve HTTP until SIGTERM or Ctrl-C; workers run elsewhere."""
    options = http_options(session, host, port, forwarded_allow, log_requests, grace, open_access, needed=True)
    stop = stop_signal()
    async with opened(load_engines(session, handlers or [])[0], stop) as engine:
        server = await listening(engine, options)
        assert server is not None
        calm_collector()
        async with server:
            event, shown = await entrance(engine, server)
            event = {"event": "started", "store": engine.kernel.store.url, **event, "pid": os.getpid()}
            lines = [
                f"Store:    {engine.kernel.store.url}",
                *shown,
                f"Stop:     Ctrl-C or kill {os.getpid()}",
            ]
            announce(session, event, lines)
            await stop.wait()
    announce(session, {"event": "stopped", "pid": os.getpid()}, ["Stopped"])


def http_options(
    session: Session,
    host: str | None,
    port: int | None,
    forwarded_allow: str,
    log_requests: bool,
    grace: float,
    open_access: bool,
    *,
    needed: bool,
) -> HttpOptions | None:
    """The options of the server; None if the packages for HTTP are missing and it is not `needed`, with a note."""
    try:
        from treadle.interfaces.http.server import GRACE, HttpOptions
    except ImportError as error:
        if needed:
            raise MissingDependency(f"Serving HTTP needs {error.name}: {_HOW}.") from None
        tell_note(f"HTTP is disabled, because {error.name} is not installed: {_HOW}.")
        return None
    return HttpOptions(
        host=session.settings.http_host if host is None else host,
        port=session.settings.http_port if port is None else port,
        grace=min(grace, GRACE),
        open_access=open_access or session.settings.http_open,
        forwarded_allow=forwarded_allow or session.settings.trusted_proxies,
        log_requests=log_requests,
    )
