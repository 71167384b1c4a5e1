"""A worker in the foreground, for the commands of frameworks."""

from __future__ import annotations

import asyncio
import signal
from typing import Any

from treadle.engine import Engine


def run_worker(engine: Engine, **options: Any) -> None:
    """Run the engine's handlers until SIGTERM or SIGINT, then stop gracefully; options as for `Engine.worker`."""
    asyncio.run(_run(engine, options))


async def _run(engine: Engine, options: dict[str, Any]) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for each in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(each, stop.set)
    async with engine, engine.worker(**options):
        await stop.wait()
