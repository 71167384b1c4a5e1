"""One client over the process's stdin and stdout; it ends when the client closes them."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, contextmanager
from dataclasses import dataclass
from typing import TextIO

import anyio
from mcp.server.stdio import stdio_server

from treadle.mcp.request_context import RequestContext
from treadle.mcp.server import Context, make_server

_LOG = logging.getLogger("treadle.mcp")


@dataclass(frozen=True, slots=True)
class Wire:
    """What was stdin and stdout."""

    incoming: TextIO
    outgoing: TextIO


@contextmanager
def kept_wire() -> Iterator[Wire]:
    """Stdin and stdout for the client alone.

    Whoever else reads, reads nothing; what is printed, by modules that are loaded and by children too, goes to stderr.
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

    When told to `stop`, the desk is closed and the process ends here: a thread reads stdin, and nothing can wake it.
    """
    async with AsyncExitStack() as stack:
        desk = await stack.enter_async_context(opening)

        async def desk_of(ctx: Context) -> RequestContext:
            return desk

        server = make_server(desk_of)
        async with stdio_server(anyio.wrap_file(wire.incoming), anyio.wrap_file(wire.outgoing)) as (read_stream, write_stream):
            running = asyncio.ensure_future(server.run(read_stream, write_stream, server.create_initialization_options()))
            stopping = asyncio.ensure_future(stop.wait())
            await asyncio.wait({running, stopping}, return_when=asyncio.FIRST_COMPLETED)
            stopping.cancel()
            failed = running.exception() if running.done() else None
            if running.done() and failed is None:
                return
            if failed is not None:
                _LOG.error("the client cannot be served", exc_info=failed)
            running.cancel()
            await stack.aclose()
            sys.stderr.flush()
            os._exit(0 if failed is None else 1)
