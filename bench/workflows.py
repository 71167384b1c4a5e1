"""Runs of workflows in one process that starts them, executes them and waits for them; with SQLite this includes the database.

*Chains*: concurrent runs of ten event steps with no-op handlers: steps per second, and CPU time of the process per step, which
hardly depends on the load of the machine. *Foreach*: one run over many items, each with an event step; how the cost of an item
grows with their number is in the section on growth. *Scripts*: milliseconds per run of one small script, with concurrent runs in
one process that forks a child for each.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from bench.benchmark import BOTH, Figures, Found, say
from bench.figures import Aim, Row, by_store, judged
from bench.workflow_worker import STEPS, chains, fan, make_engine, scripts
from treadle.interfaces.cli.host import calm_collector

NAME = "workflows"
TITLE = "Workflows"
STORES = BOTH


@dataclass(frozen=True)
class Sizes:
    """`runs` at once, and one run over `items`, in each of `rounds`."""

    runs: int = 500
    rounds: int = 7
    items: int = 10_000
    scripts: int = 200


SIZES = Sizes()
QUICK = Sizes(runs=50, rounds=2, items=500, scripts=10)


async def measure(url: str, sizes: Sizes) -> Figures:
    """Chains, a foreach and scripts in turns."""
    figures: Figures = {"runs": sizes.runs, "rounds": sizes.rounds, "items": sizes.items}
    for name in ("steps_per_s", "cpu_us_per_step", "items_per_s", "cpu_us_per_item", "ms_per_script"):
        figures[name] = []
    engine = make_engine(url)
    async with engine, engine.worker(concurrency=500):
        await fan(engine, 50)
        await scripts(engine, 1)  # the first starts the process that forks
        calm_collector()  # as a worker process does
        for number in range(1, sizes.rounds + 1):
            started, used = time.perf_counter(), time.process_time()
            await chains(engine, sizes.runs)
            took, cpu = time.perf_counter() - started, time.process_time() - used
            figures["steps_per_s"].append(sizes.runs * STEPS / took)
            figures["cpu_us_per_step"].append(cpu / sizes.runs / STEPS * 1e6)
            started, used = time.perf_counter(), time.process_time()
            await fan(engine, sizes.items)
            took, cpu = time.perf_counter() - started, time.process_time() - used
            figures["items_per_s"].append(sizes.items / took)
            figures["cpu_us_per_item"].append(cpu / sizes.items * 1e6)
            started = time.perf_counter()
            await scripts(engine, sizes.scripts)
            figures["ms_per_script"].append((time.perf_counter() - started) / sizes.scripts * 1000)
            steps, items = figures["steps_per_s"][-1], figures["items_per_s"][-1]
            say(f"round {number} of {sizes.rounds}: {steps:,.0f} steps/s, {items:,.0f} items/s")
    return figures


ROWS = (
    Row("steps per second", "steps_per_s", "/s"),
    Row("CPU of the process per step", "cpu_us_per_step", " µs"),
    Row("foreach items per second", "items_per_s", "/s"),
    Row("CPU of the process per item", "cpu_us_per_item", " µs"),
    Row("a small script", "ms_per_script", " ms"),
)

AIMS = (
    Aim("steps per second", "steps_per_s", "/s", at_least=8_000),
    Aim("foreach items per second", "items_per_s", "/s", at_least=15_000),
)


def show(found: Found) -> str:
    """Figures and aims."""
    each = next(iter(found.values()))
    told = f"{each['runs']:,} runs of {STEPS} steps at once, one run over {each['items']:,} items; {each['rounds']} rounds."
    return f"{told}\n\n{by_store(found, ROWS)}\n\n{judged(found, AIMS)}"
