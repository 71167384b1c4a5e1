"""The worker processes of `bench.queue`: `drain` runs until it has done its share, `idle` until it is told to rest."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from treadle import Engine
from treadle.settings import Settings


async def drain(url: str, name: str, share: str) -> None:
    """Run no-op tasks until nothing is left; print how many and when the first was claimed and the last settled."""
    engine = Engine(url, settings=Settings())

    @engine.handler(name)
    async def noop(payload: dict[str, Any]) -> dict[str, Any]:
        return payload

    async with engine:
        first = time.time()
        async with engine.worker(concurrency=500) as host:
            done, last = 0, first
            while True:
                await asyncio.sleep(0.005)
                if host.worker.handled > done:
                    done, last = host.worker.handled, time.time()
                elif done >= int(share) // 2 and time.time() - last > 0.5:
                    break
    print(json.dumps({"handled": done, "first": first, "last": last}))


async def idle(url: str, seconds: str) -> None:
    """Answer stamps, then rest: count the store calls of an idle worker and take its memory."""
    engine = Engine(url, settings=Settings())
    resting = asyncio.Event()

    @engine.handler("bench.stamp")
    async def stamp() -> dict[str, Any]:
        return {"at": time.time_ns()}

    @engine.handler("bench.rest")
    async def rest() -> None:
        resting.set()

    async with engine, engine.worker():
        await asyncio.sleep(1)
        print("ready", flush=True)
        await resting.wait()
        await asyncio.sleep(1)
        calls = count_calls(engine.store)
        await asyncio.sleep(float(seconds))
        print(json.dumps({"calls": calls(), "rss_mb": rss_mb()}))


def count_calls(store: Any) -> Callable[[], int]:
    """Count from now on the calls of the store's methods that send a query when nothing is to be done."""
    seen = 0
    for method in ("claim", "wake", "now", "list_lanes", "save_server", "find_finished", "notify"):
        original = getattr(store, method)

        def counted(*args: Any, _original: Any = original, **kwargs: Any) -> Any:
            nonlocal seen
            seen += 1
            return _original(*args, **kwargs)

        setattr(store, method, counted)
    return lambda: seen


def rss_mb() -> float:
    """The resident memory of this process."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) / 1024


if __name__ == "__main__":
    asyncio.run({"drain": drain, "idle": idle}[sys.argv[1]](*sys.argv[2:]))
