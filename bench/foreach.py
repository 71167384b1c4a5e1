"""A foreach over few and over many items: what one costs, in the process that does all of it, and with two worker processes."""

from __future__ import annotations

import statistics
import time
from contextlib import AsyncExitStack

from bench.benchmark import Figures, say
from bench.figures import ratios
from bench.processes import child
from bench.workflow_worker import fan, make_engine
from treadle import Engine
from treadle.interfaces.cli.host import calm_collector

REPEATS = {100: 7, 1000: 3}
"""How often small runs are measured within a round: one of 100 items takes 20 ms."""

GROWTHS = {"fan_growth": "", "fan_cpu_growth": ", CPU", "fan_2_processes_growth": ", two processes"}
"""The figures that say how much more an item costs at the most items than at 100."""

Samples = dict[str, list[float]]


async def measure_foreach(url: str, rounds: int, most: int) -> Figures:
    """Microseconds per item at all sizes, and how they grow."""
    sizes = [size for size in (100, 1000, 10_000) if size <= most]
    engine = make_engine(url)
    found: Samples = {}
    async with engine:
        async with engine.worker(concurrency=500):
            await fan(engine, 50)  # warm
            calm_collector()  # as a worker process does
            await in_turns(engine, rounds, sizes, found)
        async with AsyncExitStack() as stack:
            for _ in range(2):
                helper = await stack.enter_async_context(child("bench.workflow_worker", store=url))
                await helper.said()
            await fan(engine, 50)
            await in_turns(engine, rounds, sizes, found, "_2_processes")
    for which in ("_us", "_cpu_us", "_2_processes_us"):
        growth = which.removesuffix("_us") + "_growth"
        found[f"fan{growth}"] = ratios(found[f"fan_{sizes[-1]}{which}"], found[f"fan_100{which}"])
    return dict(found)


async def in_turns(engine: Engine, rounds: int, sizes: list[int], found: Samples, suffix: str = "") -> None:
    """All sizes in every round, the small ones several times."""
    for _ in range(rounds):
        for size in sizes:
            wall, cpu = [], []
            for _ in range(REPEATS.get(size, 1)):
                started, used = time.perf_counter(), time.process_time()
                await fan(engine, size)
                wall.append((time.perf_counter() - started) / size * 1e6)
                cpu.append((time.process_time() - used) / size * 1e6)
            found.setdefault(f"fan_{size}{suffix}_us", []).append(statistics.median(wall))
            if not suffix:
                found.setdefault(f"fan_{size}_cpu_us", []).append(statistics.median(cpu))
        say(f"foreach{suffix.replace('_', ' ')}: {found[f'fan_{sizes[-1]}{suffix}_us'][-1]:.0f} µs per item")
