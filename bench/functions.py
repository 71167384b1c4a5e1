"""Durable functions in figures: `python -m bench.functions [--store URL] [--json]`.

Runs of ten no-op steps, 500 executing at once in one worker process: each step is committed before the next begins, and the
commits of all runs are shared. A gather over 1,000 children: how often its parent is claimed. Suspended functions: memory of each.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import resource
import time
from typing import Any

from bench.servers import temporary_store
from treadle import Engine
from treadle.settings import Settings

STEPS = 10
CHILDREN = 1000


def make_engine(url: str) -> Engine:
    """An engine with the functions that are measured."""
    engine = Engine(url, settings=Settings(), emit=lambda _: None)

    async def nothing() -> None:
        return None

    @engine.function("ten")
    async def ten(payload: dict[str, Any], ctx: Any) -> None:
        for _ in range(STEPS):
            await ctx.step(nothing)

    @engine.handler("child")
    async def child(payload: dict[str, Any]) -> dict[str, Any]:
        return payload

    @engine.function("fan")
    async def fan(payload: dict[str, Any], ctx: Any) -> int:
        return len(await ctx.gather(*(ctx.call("child", {"n": n}) for n in range(CHILDREN))))

    @engine.function("sleeper")
    async def sleeper(payload: dict[str, Any], ctx: Any) -> None:
        await ctx.step(nothing)
        await ctx.wait_for("wake")

    return engine


class Countdown:
    """Told of runs that end; done when all have."""

    def __init__(self, engine: Engine, count: int) -> None:
        self._engine, self._left = engine, count
        self.done = asyncio.Event()
        engine.functions.on_finished.append(self._told)

    def _told(self, _: str) -> None:
        self._left -= 1
        if not self._left:
            self._engine.functions.on_finished.remove(self._told)
            self.done.set()


async def ten_steps(engine: Engine, runs: int, concurrency: int) -> dict[str, float]:
    """Runs per second, from the start of the worker to the last end; and what one step costs this process in CPU."""
    countdown = Countdown(engine, runs)
    began = time.perf_counter()
    for start in range(0, runs, 500):
        await asyncio.gather(*(engine.start_function("ten") for _ in range(start, min(start + 500, runs))))
    started = time.perf_counter() - began
    began, cpu = time.perf_counter(), time.process_time()
    async with engine.worker(concurrency=concurrency):
        await countdown.done.wait()
        seconds, used = time.perf_counter() - began, time.process_time() - cpu
    return {
        "starts_per_s": runs / started,
        "runs_per_s": runs / seconds,
        "steps_per_s": runs * STEPS / seconds,
        "cpu_us_per_step": used / runs / STEPS * 1e6,
    }


async def fan_out(engine: Engine) -> dict[str, float]:
    """A gather over many children: claims of the parent, and how long it took."""
    async with engine.worker(concurrency=500):
        began = time.perf_counter()
        run = await engine.start_function("fan")
        await engine.run_result(run, timeout=600)
        seconds = time.perf_counter() - began
    (task,) = await engine.reads.list_tasks(kind="function", run_id=run.id)
    return {"gather_1000_parent_claims": task.claim_version, "gather_1000_s": seconds}


async def suspended(engine: Engine, count: int) -> dict[str, float]:
    """Memory of each suspended function, beyond what the process had before."""
    gc.collect()
    before = _memory()
    for start in range(0, count, 500):
        await asyncio.gather(*(engine.start_function("sleeper") for _ in range(start, min(start + 500, count))))
    async with engine.worker(concurrency=500):
        while any(depth.ready or depth.running for depth in await engine.store.list_depths() if depth.lane.kind == "function"):
            await asyncio.sleep(0.1)
        gc.collect()
        after = _memory()
    return {"suspended": count, "suspended_bytes_each": (after - before) / count}


def _memory() -> int:
    """Bytes of memory of this process now."""
    with open("/proc/self/statm") as file:  # noqa: PTH123
        return int(file.read().split()[1]) * resource.getpagesize()


async def measure(url: str, runs: int, concurrency: int, sleepers: int) -> dict[str, Any]:
    """All figures for one store."""
    figures: dict[str, Any] = {"store": url.partition("://")[0]}
    engine = make_engine(url)
    async with engine:
        await ten_steps(engine, 200, concurrency)  # warm
        figures |= await ten_steps(engine, runs, concurrency)
        figures |= await fan_out(engine)
        figures |= await suspended(engine, sleepers)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", help="store URL; default: a temporary SQLite file, then a temporary PostgreSQL")
    parser.add_argument("--runs", type=int, default=4000)
    parser.add_argument("--concurrency", type=int, default=500)
    parser.add_argument("--sleepers", type=int, default=10_000)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    sizes = (arguments.runs, arguments.concurrency, arguments.sleepers)
    all_figures = []
    for kind in [arguments.store] if arguments.store else ["sqlite", "postgresql"]:
        if arguments.store:
            all_figures.append(asyncio.run(measure(kind, *sizes)))
        else:
            with temporary_store(kind) as url:
                all_figures.append(asyncio.run(measure(url, *sizes)))
    if arguments.json:
        print(json.dumps(all_figures, indent=2))
        return
    for figures in all_figures:
        print(f"\n{figures.pop('store')}")
        for name, value in figures.items():
            print(f"  {name:36} {value:12,.2f}")


if __name__ == "__main__":
    main()
