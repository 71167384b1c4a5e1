"""`treadle serve`, `treadle mcp` and `treadle lsp`: servers for HTTP, the Model Context Protocol and editors."""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated

from treadle.engine import Engine
from treadle.interfaces.cli.command import option
from treadle.interfaces.cli.engines import load_engines
from treadle.interfaces.cli.host import (
    announce_stop,
    enable_llm,
    has_mcp,
    listening,
    opened,
    registered_handlers,
    serve_http,
    stop_signal,
    worker_starter,
)
from treadle.interfaces.cli.messages import print_note
from treadle.interfaces.cli.session import CommandSession
from treadle.model.access import Access, Scope, granted, parse_scopes
from treadle.model.errors import InvalidInput, MissingDependency
from treadle.model.names import DEFAULT_LIST

if TYPE_CHECKING:
    from treadle.interfaces.http.server import HttpOptions
    from treadle.interfaces.mcp.request_context import RequestContext


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
        help="Port; 0: any; default: TREADLE_HTTP_PORT, or 8787 or one of the next ten if it is taken",
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
    session: CommandSession,
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
        server = await listening(engine, options, stop)
        assert server is not None
        await serve_http(session, engine, server, stop)
    announce_stop(session)


def http_options(
    session: CommandSession,
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
        print_note(f"HTTP is disabled, because {error.name} is not installed: {_HOW}.")
        return None
    return HttpOptions(
        host=session.settings.http_host if host is None else host,
        port=session.settings.http_port if port is None else port,
        grace=min(grace, GRACE),
        open_access=open_access or session.settings.http_open,
        forwarded_allow=forwarded_allow or session.settings.trusted_proxies,
        log_requests=log_requests,
    )


_GRACE = 1.0
"""Seconds that running work gets when the client disconnects: many clients kill the process after two seconds."""


async def mcp(
    session: CommandSession,
    scopes: Annotated[
        list[str] | None,
        option(
            "--scope",
            choices=tuple(scope.value for scope in Scope),
            help="Over stdio on a store: allow only this scope; repeatable; default: all scopes",
        ),
    ] = None,
    handlers: Annotated[
        list[str] | None,
        option("--handlers", metavar="MODULE", help="Modules with engines that define handlers, functions and codecs; repeatable"),
    ] = None,
    work: Annotated[
        bool, option("--work", help="Also run a worker in this process, for --handlers and for handlers registered in the store")
    ] = False,
    llm: Annotated[bool, option("--llm", help="With --work: also run prompt blocks, with TREADLE_LLM_MODEL")] = False,
    toolsets: Annotated[
        str | None,
        option(
            metavar="NAMES",
            help="Over stdio: list these sets of tools, separated by commas, or `all`; default: core,operate,author",
        ),
    ] = None,
    http: Annotated[
        bool, option("--http", help="Serve streamable HTTP at /mcp instead of stdio, with the server's tokens")
    ] = False,
    host: Host = None,
    port: Port = None,
    open_access: Open = False,
) -> None:
    """Serve the Model Context Protocol to one client over stdio, until it closes stdin, or to many with --http.

    Works on a store, or over stdio on a remote server with --server and --token. A server also serves MCP itself, at /mcp.
    """
    if not has_mcp():
        raise MissingDependency("MCP needs the package mcp: pip install 'treadle[mcp]'.")
    if http:
        await _over_http(session, scopes, handlers or [], host, port, open_access, work, llm)
        return
    stop = stop_signal()
    from treadle.interfaces.mcp.server import kept_wire, serve_stdio

    if sys.stdin.isatty():
        print_note("This command speaks MCP over stdin and stdout with a client program; Ctrl-C stops it.")
    from treadle.interfaces.mcp.catalog import parse_toolsets

    listed = parse_toolsets(toolsets or "")
    with kept_wire() as wire:
        if session.chosen.remote:
            if scopes or handlers or work or llm:
                raise InvalidInput("--scope, --handlers and --work need a store; on a server the token decides.")
            await serve_stdio(_far_desk(session, listed), wire, stop)
        else:
            engines = load_engines(session, handlers or [])
            await serve_stdio(_near_desk(session, scopes, engines, work, llm, listed), wire, stop)


@asynccontextmanager
async def _far_desk(session: CommandSession, toolsets: frozenset[str]) -> AsyncIterator[RequestContext]:
    """A request context for tools that run here, on a remote server."""
    from treadle.interfaces.mcp.request_context import RequestContext

    async with session.api(for_model=True) as api:
        yield RequestContext(api, toolsets=toolsets)


@asynccontextmanager
async def _near_desk(
    session: CommandSession,
    scopes: Sequence[str] | None,
    engines: Sequence[Engine],
    work: bool,
    llm: bool,
    toolsets: frozenset[str],
) -> AsyncIterator[RequestContext]:
    from treadle.engine.operations import Operations
    from treadle.interfaces.mcp.request_context import RequestContext

    actor = f"mcp:{session.actor.removeprefix('cli:')}"
    access = Access(actor, granted(parse_scopes(scopes)) if scopes else frozenset(Scope), for_model=True)
    served = [DEFAULT_LIST] if work else []
    async with (
        _working(engines, work, llm) as engine,
        worker_starter(engine, _GRACE, served=served, registered=work and _is_shared(engine)) as start_worker,
    ):
        yield RequestContext(Operations(engine, access), access, toolsets=toolsets, start_worker=start_worker)


async def _over_http(
    session: CommandSession,
    scopes: Sequence[str] | None,
    handlers: Sequence[str],
    host: str | None,
    port: int | None,
    open_access: bool,
    work: bool,
    llm: bool,
) -> None:
    if session.chosen.remote:
        raise InvalidInput(f"The server already serves MCP at {session.chosen.remote}/mcp: omit --http or --server.")
    if scopes:
        raise InvalidInput("Over HTTP the caller's token decides: create one with `treadle token create NAME --scope operate`.")
    from treadle.interfaces.cli.mcp_mount import PATH, add_mcp

    options = http_options(session, host, port, "", False, _GRACE, open_access, needed=True)
    from treadle.interfaces.http.server import HttpServer

    stop = stop_signal()
    async with _working(load_engines(session, handlers), work, llm, stop) as engine:
        server = HttpServer(engine, options, more=(add_mcp,))
        await server.listen()
        await serve_http(session, engine, server, stop, path=PATH, pages=False)
    announce_stop(session)


@asynccontextmanager
async def _working(engines: Sequence[Engine], work: bool, llm: bool, stop: asyncio.Event | None = None) -> AsyncIterator[Engine]:
    """Open all engines, so that handlers can use theirs; run a worker on the first if wanted.

    With `stop`, wait for stores that cannot be reached.
    """
    if llm:
        enable_llm(engines[0])
    async with AsyncExitStack() as stack:
        for engine in engines:
            await stack.enter_async_context(engine if stop is None else opened(engine, stop))
        if work:
            await stack.enter_async_context(engines[0].worker(grace=_GRACE))
            if _is_shared(engines[0]):
                await stack.enter_async_context(registered_handlers(engines[0], _GRACE))
        yield engines[0]


def _is_shared(engine: Engine) -> bool:
    """Whether a second engine can open the store."""
    return not engine.kernel.store.url.startswith("memory:")


def lsp(
    session: CommandSession,
    stdio: Annotated[bool, option("--stdio", help="Use stdin and stdout; this is the default, and some editors pass it")] = False,
) -> None:
    """Serve the Language Server Protocol for AFL to one editor over stdio, until it disconnects."""
    if find_spec("pygls") is None:
        raise MissingDependency("The language server needs the package pygls: pip install 'treadle[lsp]'.")
    from treadle.interfaces.lsp.server import make_server

    if sys.stdin.isatty():
        print_note("Waiting for an editor to speak the Language Server Protocol on stdin; Ctrl-C stops.")
    server = make_server()
    gc.freeze()
    gc.set_threshold(100_000, 20, 20)  # a check makes many objects that live on; collecting in the middle of it doubles its time
    server.start_io()
