"""Workflows in figures: `python -m bench.workflows [--store URL] [--json]`.

A foreach over 100, 1,000 and 10,000 items with no-op handlers: the cost per item at 10,000 against that at 100, with one
and with two worker processes on the one run. And 500 runs of a chain of ten event steps: steps per second.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import time
from typing import Any

from bench.servers import temporary_store
from treadle import Engine
from treadle.settings import Settings

SIZES = (100, 1000, 10_000)
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


async def fan(engine: Engine, size: int) -> float:
    """Seconds per item of one run over so many items."""
    started = time.perf_counter()
    run = await engine.start_run(SOURCES, "bench.Fan", {"items": list(range(size))})
    await engine.run_result(run, timeout=600)
    return (time.perf_counter() - started) / size


async def chains(engine: Engine, runs: int) -> float:
    """Steps per second of so many chains at once."""
    started = time.perf_counter()
    begun = await asyncio.gather(*(engine.start_run(SOURCES, "bench.Chain", {"n": n}) for n in range(runs)))
    await asyncio.gather(*(engine.run_result(run, timeout=600) for run in begun))
    return runs * STEPS / (time.perf_counter() - started)


async def measure(url: str, runs: int) -> dict[str, Any]:
    """All figures for one store."""
    figures: dict[str, Any] = {"store": url.partition("://")[0]}
    engine = make_engine(url)
    async with engine:
        async with engine.worker(concurrency=500):
            await fan(engine, 50)  # warm
            figures["chain_steps_per_s"] = await chains(engine, runs)
            for size in SIZES:
                figures[f"fan_{size}_us_per_item"] = await fan(engine, size) * 1e6
        figures["fan_growth"] = figures["fan_10000_us_per_item"] / figures["fan_100_us_per_item"]
        helpers = [subprocess.Popen([sys.executable, "-m", "bench.workflows", "--worker", "--store", url]) for _ in range(2)]
        try:
            await fan(engine, 50)
            for size in (SIZES[0], SIZES[-1]):
                figures[f"fan_{size}_us_per_item_2_processes"] = await fan(engine, size) * 1e6
        finally:
            for helper in helpers:
                helper.terminate()
                helper.wait()
    figures["fan_growth_2_processes"] = figures["fan_10000_us_per_item_2_processes"] / figures["fan_100_us_per_item_2_processes"]
    return figures


async def serve(url: str) -> None:
    """A worker process, until it is ended."""
    engine = make_engine(url)
    async with engine, engine.worker(concurrency=500):
        await asyncio.Event().wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", help="store URL; default: a temporary SQLite file, then a temporary PostgreSQL")
    parser.add_argument("--runs", type=int, default=500)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if arguments.worker:
        asyncio.run(serve(arguments.store))
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
