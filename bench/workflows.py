"""Workflows in figures: `python -m bench.workflows [--store URL] [--json]`.

A foreach over 100, 1,000 and 10,000 items with no-op handlers: the cost per item at 10,000 against that at 100, with one
and with two worker processes on the one run. And 500 runs of a chain of ten event steps: steps per second. Small sizes are
measured many times, and the median counts. `cpu` is the CPU time of this process, which does all of it: it starts the runs,
works and waits; that figure hardly depends on what else the machine does.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

from bench.servers import temporary_store
from treadle import Engine
from treadle.cli.serving import calm_collector
from treadle.settings import Settings

SIZES = {100: 15, 1000: 3, 10_000: 1}
"""How often each is measured."""
STEPS = 10

FLOW = (
    """
namespace bench {
    event facet Item(n: Long) => (n: Long)
    workflow Fan(items: Json) => (done: Long) andThen foreach i in $.items {
        s = Item(n = $.i)
    } andThen { yield Fan(done = 1) }
    event facet Link(n: Long) => (n: Long)
    workflow Chain(n: Long) => (n: Long) andThen {
        s0 = Link(n = $.n)
"""
    + "".join(f"        s{k} = Link(n = s{k - 1}.n)\n" for k in range(1, STEPS))
    + f"""        yield Chain(n = s{STEPS - 1}.n)
    }}
}}
"""
)
SOURCES = [("bench.afl", FLOW)]


def make_engine(url: str) -> Engine:
    """An engine whose handlers give back what they get."""
    engine = Engine(url, settings=Settings())

    async def same(payload: dict[str, Any]) -> dict[str, Any]:
        return payload

    engine.handler("bench.Item")(same)
    engine.handler("bench.Link")(same)
    return engine


async def fan(engine: Engine, size: int) -> None:
    """One run over so many items."""
    run = await engine.start_run(SOURCES, "bench.Fan", {"items": list(range(size))})
    await engine.run_result(run, timeout=600)


async def chains(engine: Engine, runs: int) -> None:
    """So many chains at once."""
    begun = await asyncio.gather(*(engine.start_run(SOURCES, "bench.Chain", {"n": n}) for n in range(runs)))
    await asyncio.gather(*(engine.run_result(run, timeout=600) for run in begun))


async def cost(what: Callable[[], Awaitable[None]], parts: int, times: int = 1) -> tuple[float, float]:
    """Microseconds for each of so many parts, and of CPU time in this process; the medians of so many times."""
    wall, cpu = [], []
    for _ in range(times):
        started, used = time.perf_counter(), time.process_time()
        await what()
        wall.append((time.perf_counter() - started) / parts * 1e6)
        cpu.append((time.process_time() - used) / parts * 1e6)
    return statistics.median(wall), statistics.median(cpu)


async def fans(engine: Engine, figures: dict[str, Any], suffix: str = "") -> None:
    """The cost per item at all sizes, and how it grows."""
    for size, times in SIZES.items():
        wall, cpu = await cost(lambda size=size: fan(engine, size), size, times)  # type: ignore[misc]
        figures[f"fan_{size}_us_per_item{suffix}"] = wall
        if not suffix:
            figures[f"fan_{size}_cpu_us_per_item"] = cpu
    figures[f"fan_growth{suffix}"] = figures[f"fan_10000_us_per_item{suffix}"] / figures[f"fan_100_us_per_item{suffix}"]
    if not suffix:
        figures["fan_cpu_growth"] = figures["fan_10000_cpu_us_per_item"] / figures["fan_100_cpu_us_per_item"]


async def measure(url: str, runs: int) -> dict[str, Any]:
    """All figures for one store."""
    figures: dict[str, Any] = {"store": url.partition("://")[0], "load": os.getloadavg()[0]}
    engine = make_engine(url)
    async with engine:
        async with engine.worker(concurrency=500):
            await fan(engine, 50)  # warm
            calm_collector()  # as a worker process does
            wall, cpu = await cost(lambda: chains(engine, runs), runs * STEPS)
            figures["chain_steps_per_s"] = 1e6 / wall
            figures["chain_cpu_us_per_step"] = cpu
            await fans(engine, figures)
        helpers = [subprocess.Popen([sys.executable, "-m", "bench.workflows", "--worker", "--store", url]) for _ in range(2)]
        try:
            await fan(engine, 50)
            await fans(engine, figures, "_2_processes")
        finally:
            for helper in helpers:
                helper.terminate()
                helper.wait()
    return figures


def measure_chains(kind: str | None, runs: int, times: int) -> None:
    """Steps per second and CPU time per step of chains alone, each time on a new store: all figures, and the median."""

    async def once(url: str) -> tuple[float, float]:
        engine = make_engine(url)
        async with engine, engine.worker(concurrency=500):
            await fan(engine, 50)  # warm
            calm_collector()
            return await cost(lambda: chains(engine, runs), runs * STEPS)

    rates = []
    for _ in range(times):
        with temporary_store(kind or "postgresql") as url:
            wall, cpu = asyncio.run(once(url))
        rates.append(1e6 / wall)
        print(f"{rates[-1]:8,.0f} steps/s  {cpu:6.0f} us of CPU per step  load {os.getloadavg()[0]:.1f}", flush=True)
    print(f"median {statistics.median(rates):,.0f} steps/s, best {max(rates):,.0f}")


async def serve(url: str) -> None:
    """A worker process, until it is ended."""
    engine = make_engine(url)
    calm_collector()
    async with engine, engine.worker(concurrency=500):
        await asyncio.Event().wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", help="store URL; default: a temporary SQLite file, then a temporary PostgreSQL")
    parser.add_argument("--runs", type=int, default=500)
    parser.add_argument("--chains", type=int, metavar="TIMES", help="only the chains, so often, each time on a new store")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if arguments.worker:
        asyncio.run(serve(arguments.store))
        return
    if arguments.chains:
        measure_chains(arguments.store, arguments.runs, arguments.chains)
        return
    all_figures = []
    for kind in [arguments.store] if arguments.store else ["sqlite", "postgresql"]:
        if arguments.store:
            all_figures.append(asyncio.run(measure(kind, arguments.runs)))
        else:
            with temporary_store(kind) as url:
                all_figures.append(asyncio.run(measure(url, arguments.runs)))
    if arguments.json:
        print(json.dumps(all_figures, indent=2))
        return
    for figures in all_figures:
        print(f"\n{figures.pop('store')}")
        for name, value in figures.items():
            print(f"  {name:36} {value:12,.2f}")


if __name__ == "__main__":
    main()
