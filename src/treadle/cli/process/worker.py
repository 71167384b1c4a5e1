"""A worker process under signals: it serves until told to stop, then lets running work finish."""

from __future__ import annotations

import asyncio
import gc
import importlib.util
import json
import logging
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

from treadle.cli.exits import INTERRUPTED
from treadle.cli.output.messages import tell_note
from treadle.cli.session import Session
from treadle.engine import Engine
from treadle.model.values import Json

if TYPE_CHECKING:
    from treadle.http.server import HttpOptions, HttpServer

_COLLECTIONS = (10_000, 20, 20)
"""New objects after which the youngest are looked at, and how many such looks before one at the older ones."""


@dataclass(frozen=True)
class Serving:
    """How a worker process works; numbers are per process."""

    task_lists: tuple[str, ...]
    concurrency: int
    threads: int
    isolated: int
    grace: float
    lease: float | None = None
    stop_at_eof: bool = False
    """Stop when stdin ends: a child whose parent has died does not stay behind."""
    llm: bool = False
    """Also do steps of prompt blocks, with the model of the settings."""
    name: str | None = None
    """The server's name; what an earlier process of that name held is taken over at once."""
    topology: str | None = None
    """The topology file of the goal pipeline, and the roles in it to play (none: all)."""
    roles: tuple[str, ...] = ()
    http: HttpOptions | None = None
    """Also serve HTTP, there."""


def enable_llm(engine: Engine) -> None:
    """Let the engine's workers do steps of prompt blocks."""
    from treadle.llm import use_llm

    use_llm(engine)


async def serve(engines: Sequence[Engine], options: Serving, started: Callable[[str, HttpServer | None], None]) -> tuple[int, int]:
    """Run the first engine's worker until SIGTERM or SIGINT; all are open meanwhile, so that handlers can use theirs.

    A second SIGINT ends the process at once: what it holds is taken over when the leases run out. Returns how many
    tasks were handled and released.
    """
    stop = stop_signal(options.stop_at_eof)
    if options.llm:
        enable_llm(engines[0])
    if options.topology is not None:
        engines[0].use_topology(options.topology, roles=options.roles or None)
    async with AsyncExitStack() as stack:
        for engine in engines:
            await stack.enter_async_context(engine)
        await stack.enter_async_context(observed(engines[0]))
        server = await listening(engines[0], options.http)
        calm_collector()
        worker = engines[0].worker(
            concurrency=options.concurrency,
            threads=options.threads,
            processes=options.isolated,
            task_lists=options.task_lists,
            lease=options.lease,
            grace=options.grace,
            name=options.name,
        )
        async with worker as host, server or nullcontext():
            started(host.owner_id, server)
            await stop.wait()
            logging.getLogger("treadle").info("stopping: no new tasks; running ones get %g s", options.grace)
    return host.worker.handled, host.worker.released


@asynccontextmanager
async def observed(engine: Engine) -> AsyncIterator[None]:
    """As the settings say: spans of handlers' own code go where the engine's go, and metrics are served."""
    engine.kernel.share_tracing()
    if not engine.kernel.settings.metrics_address:
        yield
        return
    from treadle.observability.status_server import serve_metrics

    kernel = engine.kernel
    async with serve_metrics(engine.metrics, kernel.tokens, kernel.emit, kernel.settings.metrics_address):
        yield


async def listening(engine: Engine, options: HttpOptions | None) -> HttpServer | None:
    """A server for that engine that has its address, and answers once it is entered; nothing else is begun if it gets none."""
    if options is None:
        return None
    from treadle.http.server import HttpServer
    from treadle.web.site import add_pages

    more = [add_pages]
    if has_mcp():
        from treadle.cli.process.mcp_mount import add_mcp

        more.append(add_mcp)
    server = HttpServer(engine, options, more=more)
    await server.listen()
    return server


def has_mcp() -> bool:
    """Whether the SDK is there that MCP is spoken with; it is not loaded for that."""
    return importlib.util.find_spec("mcp_types") is not None


def calm_collector() -> None:
    """Let the garbage collector of this process look less often, and not again and again at all that is loaded and stays."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_COLLECTIONS)


def stop_signal(at_eof: bool = False) -> asyncio.Event:
    """An event that SIGTERM and SIGINT set; the second SIGINT ends the process there and then."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def interrupted() -> None:
        if stop.is_set():
            tell_note("Stopped at once; what was running is taken over when its leases run out.")
            os._exit(INTERRUPTED)
        stop.set()

    loop.add_signal_handler(signal.SIGTERM, stop.set)
    loop.add_signal_handler(signal.SIGINT, interrupted)
    if at_eof:

        def watch() -> None:
            while os.read(0, 1024):
                pass
            loop.call_soon_threadsafe(stop.set)

        threading.Thread(target=watch, name="treadle-parent", daemon=True).start()
    return stop


def announce(session: Session, event: dict[str, Json], lines: Sequence[str]) -> None:
    """Say something at once: one JSON object on a line, or lines for people."""
    if session.json:
        sys.stdout.write(json.dumps(event) + "\n")
    else:
        for line in lines:
            session.console.print(line, soft_wrap=True)
    sys.stdout.flush()


def leave_threads_behind(code: int = 0) -> None:
    """End the process now if a sync handler is still stuck in its thread: waiting for it could take for ever."""
    if any(thread.name.startswith("treadle-handler") for thread in threading.enumerate()):
        logging.getLogger("treadle").warning("leaving handlers behind that did not stop; their tasks were released")
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def how_open(http: HttpServer) -> str:
    """Who gets in."""
    if http.open:
        return "(open to this machine, as there is no token: treadle token create)"
    return "(a token is needed)"
