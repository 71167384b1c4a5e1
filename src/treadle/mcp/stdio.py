"""One client over the process's stdin and stdout; it ends when the client closes them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, contextmanager, redirect_stdout
from typing import TextIO

from mcp.server.stdio import stdio_server

from treadle.mcp.desk import Desk
from treadle.mcp.server import Context, make_server


@contextmanager
def kept_wire() -> Iterator[TextIO]:
    """Stdout for the client alone: whatever anybody prints meanwhile, modules that are loaded among them, goes to stderr."""
    wire = sys.stdout
    with redirect_stdout(sys.stderr):
        yield wire


async def serve_stdio(opening: AbstractAsyncContextManager[Desk], wire: TextIO) -> None:
    """Serve until stdin ends. The desk is opened once the wire is taken, so that what it starts cannot write to it."""
    async with AsyncExitStack() as stack:
        with redirect_stdout(wire):
            streams = await stack.enter_async_context(stdio_server())
        desk = await stack.enter_async_context(opening)

        async def desk_of(ctx: Context) -> Desk:
            return desk

        server = make_server(desk_of)
        read_stream, write_stream = streams
        await server.run(read_stream, write_stream, server.create_initialization_options())
