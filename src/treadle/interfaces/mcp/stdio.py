"""Serve one client over stdin and stdout until the client closes them."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, contextmanager
from dataclasses import dataclass
from typing import TextIO

import anyio
from mcp.server.stdio import stdio_server

from treadle.interfaces.mcp.request_context import RequestContext
from treadle.interfaces.mcp.server import Context, make_server
from treadle.model.text import safe_logger

_LOG = safe_logger("treadle.mcp")


@dataclass(frozen=True, slots=True)
class Wire:
    """The original stdin and stdout."""

    incoming: TextIO
    outgoing: TextIO


@contextmanager
def kept_wire() -> Iterator[Wire]:
    """Reserve stdin and stdout for the client.

    Other readers of stdin get nothing; output of loaded modules and of child processes goes to stderr.
    """
    incoming, outgoing = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    try:
        yield Wire(
            open(incoming, encoding="utf-8", errors="replace", closefd=False),  # noqa: SIM115 - a thread may still read it
            open(outgoing, "w", encoding="utf-8", closefd=False),  # noqa: SIM115
        )
    finally:
        sys.stdout.flush()
        os.dup2(incoming, 0)
        os.dup2(outgoing, 1)


async def serve_stdio(opening: AbstractAsyncContextManager[RequestContext], wire: Wire, stop: asyncio.Event) -> None:
    """Serve until stdin ends.

    On `stop`, close the context and end the process here: a thread reads stdin, and nothing can interrupt it.
    """
    async with AsyncExitStack() as stack:
        context = await stack.enter_async_context(opening)

        async def context_of(ctx: Context) -> RequestContext:
            return context

        server = make_server(context_of)
        async with stdio_server(anyio.wrap_file(wire.incoming), anyio.wrap_file(wire.outgoing)) as (read_stream, write_stream):
            running = asyncio.ensure_future(server.run(read_stream, write_stream, server.create_initialization_options()))
            stopping = asyncio.ensure_future(stop.wait())
            await asyncio.wait({running, stopping}, return_when=asyncio.FIRST_COMPLETED)
            stopping.cancel()
            failed = running.exception() if running.done() else None
            if running.done() and failed is None:
                return
            if failed is not None:
                _LOG.error("serving the client failed", exc_info=failed)
            running.cancel()
            await stack.aclose()
            sys.stderr.flush()
            os._exit(0 if failed is None else 1)
