"""Engines in processes of frameworks: the open one of a forked server, a worker in the foreground, and the URL of a database."""

from __future__ import annotations

import asyncio
import atexit
import os
import signal
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

from treadle.engine import Engine
from treadle.engine.engine import engine_beside

if TYPE_CHECKING:
    from treadle.engine.sync import BlockingEngine

_lock = threading.Lock()
_open: dict[tuple[int, int], BlockingEngine] = {}
"""By the pid, as a forked process must not use the engine of its parent, and by engine."""


def open_engine(engine: Engine) -> BlockingEngine:
    """Return the open engine of this process on the same store; it is opened on first use, and closed at exit."""
    place = os.getpid(), id(engine)
    with _lock:
        blocking = _open.get(place)
        if blocking is None:
            blocking = _open[place] = engine_beside(engine).blocking().__enter__()
        return blocking


@atexit.register
def close_engines() -> None:
    """Close the engines that this process has opened, but not those of the process that forked it."""
    with _lock:
        for place in [place for place in _open if place[0] == os.getpid()]:
            _open.pop(place).__exit__()


def run_worker(engine: Engine, **options: Any) -> None:
    """Run the engine's handlers until SIGTERM or SIGINT, then stop gracefully; options as for `Engine.worker`."""
    asyncio.run(_run(engine, options))


async def _run(engine: Engine, options: dict[str, Any]) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for signal_number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signal_number, stop.set)
    async with engine, engine.worker(**options):
        await stop.wait()


_PASSED = ("sslmode", "sslrootcert", "sslcert", "sslkey", "application_name")


def store_url(parameters: Mapping[str, Any], schema: str) -> str:
    """Return the URL of a store in the database that a driver connects to with these parameters."""
    user = quote(str(parameters.get("user") or ""), safe="")
    password = quote(str(parameters.get("password") or ""), safe="")
    host, port = str(parameters.get("host") or ""), str(parameters.get("port") or "")
    name = quote(str(parameters.get("dbname") or parameters.get("database") or ""), safe="")
    query = {key: str(parameters[key]) for key in _PASSED if parameters.get(key)} | {"schema": schema}
    if host.startswith("/") or not host:  # a directory with a socket
        query |= {"host": host} if host else {}
        query |= {"port": port} if port else {}
        place = ""
    else:
        place = f"{host}:{port}" if port else host
    login = f"{user}:{password}@" if password else f"{user}@" if user else ""
    return f"postgresql://{login}{place}/{name}?{urlencode(query)}"
