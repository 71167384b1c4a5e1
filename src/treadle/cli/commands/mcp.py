"""`treadle mcp`: tools, resources and prompts for models, over stdio or streamable HTTP."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from treadle.cli.command import option
from treadle.cli.commands.serve import Host, Port, http_options
from treadle.cli.output.messages import tell_note
from treadle.cli.process.engines import load_engines
from treadle.cli.process.worker import announce, calm_collector, enable_llm, has_mcp, how_open, stop_signal
from treadle.cli.session import Session
from treadle.engine import Engine
from treadle.model.access import Access, Scope, granted, parse_scopes
from treadle.model.errors import InvalidInput, MissingDependency

if TYPE_CHECKING:
    from treadle.mcp.request_context import RequestContext

_GRACE = 1.0
"""Seconds that running work gets when the client goes: many clients kill what has not ended two seconds later."""


@dataclass(frozen=True, slots=True)
class _Work:
    """Whether work is done here too, and by models."""

    wanted: bool
    llm: bool


async def mcp(
    session: Session,
    scopes: Annotated[
        list[Scope] | None,
        option("--scope", help="Over stdio on a store: only what this allows; may be repeated; default: everything"),
    ] = None,
    handlers: Annotated[
        list[str] | None,
        option("--handlers", metavar="MODULE", help="Modules whose engines know handlers, functions and codecs; may be repeated"),
    ] = None,
    work: Annotated[bool, option("--work", help="Also run a worker here, so that nothing else need run")] = False,
    llm: Annotated[bool, option("--llm", help="With --work: also do steps of prompt blocks, with TREADLE_LLM_MODEL")] = False,
    http: Annotated[
        bool, option("--http", help="Serve streamable HTTP at /mcp instead of stdio, with the server's tokens")
    ] = False,
    host: Host = None,
    port: Port = None,
) -> None:
    """Serve the Model Context Protocol, for one client over stdio (until it closes stdin), or with --http for many.

    On a store, or over stdio with --server and --token for a server far away; a server has it at its own /mcp too.
    """
    if not has_mcp():
        raise MissingDependency("MCP needs the package mcp: pip install 'treadle[mcp]'.")
    if http:
        await _over_http(session, scopes, handlers or [], host, port, _Work(work, llm))
        return
    stop = stop_signal()
    from treadle.mcp.stdio import kept_wire, serve_stdio

    if sys.stdin.isatty():
        tell_note("This speaks MCP with a program at its stdin and stdout; Ctrl-C ends it.")
    with kept_wire() as wire:
        if session.chosen.remote:
            if scopes or handlers or work or llm:
                raise InvalidInput("--scope, --handlers and --work are for a store: on a server the token says what may be done.")
            await serve_stdio(_far_desk(session), wire, stop)
        else:
            await serve_stdio(_near_desk(session, scopes, load_engines(session, handlers or []), _Work(work, llm)), wire, stop)


@asynccontextmanager
async def _far_desk(session: Session) -> AsyncIterator[RequestContext]:
    """Tools here, the work there."""
    from treadle.mcp.request_context import RequestContext

    async with session.api() as api:
        yield RequestContext(api)


@asynccontextmanager
async def _near_desk(
    session: Session, scopes: Sequence[Scope] | None, engines: Sequence[Engine], work: _Work
) -> AsyncIterator[RequestContext]:
    from treadle.mcp.request_context import RequestContext
    from treadle.service import Service

    actor = f"mcp:{session.actor.removeprefix('cli:')}"
    access = Access(actor, granted(parse_scopes(scopes)) if scopes else frozenset(Scope))
    async with _working(engines, work) as engine:
        yield RequestContext(Service(engine, access), access.scopes)


async def _over_http(
    session: Session, scopes: Sequence[Scope] | None, handlers: Sequence[str], host: str | None, port: int | None, work: _Work
) -> None:
    if session.chosen.remote:
        raise InvalidInput(f"The server serves MCP itself, at {session.chosen.remote}/mcp: leave --http or --server out.")
    if scopes:
        raise InvalidInput("Over HTTP a token says what its caller may do: make one with `treadle token create NAME --scope ...`.")
    from treadle.cli.process.mcp_mount import PATH, add_mcp

    options = http_options(session, host, port, "", False, _GRACE, needed=True)
    from treadle.http.server import HttpServer

    stop = stop_signal()
    async with _working(load_engines(session, handlers), work) as engine:
        server = HttpServer(engine, options, more=(add_mcp,))
        await server.listen()
        calm_collector()
        async with server:
            url = f"{server.url}{PATH}"
            event = {"event": "started", "store": engine.store.url, "url": url, "open": server.open, "pid": os.getpid()}
            lines = [
                f"Store:    {engine.store.url}",
                f"MCP:      {url} {how_open(server)}",
                f"Stop:     Ctrl-C or kill {os.getpid()}",
            ]
            announce(session, event, lines)
            await stop.wait()
    announce(session, {"event": "stopped", "pid": os.getpid()}, ["Stopped"])


@asynccontextmanager
async def _working(engines: Sequence[Engine], work: _Work) -> AsyncIterator[Engine]:
    """All engines open, so that handlers can use theirs; the first one at work, if that is wanted."""
    if work.llm:
        enable_llm(engines[0])
    async with AsyncExitStack() as stack:
        for engine in engines:
            await stack.enter_async_context(engine)
        if work.wanted:
            await stack.enter_async_context(engines[0].worker(grace=_GRACE))
        yield engines[0]
