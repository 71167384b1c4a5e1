"""Sync durable functions, against async ones with the same steps, alternately in each round.

Runs of ten no-op steps in one worker process, 500 concurrently, as in the benchmark of functions.
"""

from __future__ import annotations

from dataclasses import dataclass

from bench.benchmark import BOTH, Figures, Found, say
from bench.figures import Aim, Row, by_store, judged, ratios
from bench.functions import make_engine, ten_steps

NAME = "sync_functions"
TITLE = "Sync durable functions"
STORES = BOTH
KINDS = {"async": "ten", "sync": "ten_sync"}


@dataclass(frozen=True)
class Sizes:
    """`runs` of each kind in each of `rounds`, `concurrency` at once."""

    runs: int = 1000
    rounds: int = 5
    concurrency: int = 500


SIZES = Sizes()
QUICK = Sizes(runs=100, rounds=2)


async def measure(url: str, sizes: Sizes) -> Figures:
    """Run the functions of each kind, one kind after the other, in every round."""
    figures: Figures = {"runs": sizes.runs, "rounds": sizes.rounds}
    engine = make_engine(url)
    async with engine:
        for name in KINDS.values():
            await ten_steps(engine, 200, sizes.concurrency, name)  # warm
        for number in range(1, sizes.rounds + 1):
            for kind, name in KINDS.items():
                found = await ten_steps(engine, sizes.runs, sizes.concurrency, name)
                for figure in ("steps_per_s", "cpu_us_per_step"):
                    figures.setdefault(f"{kind} {figure}", []).append(found[figure])
            say(
                f"round {number} of {sizes.rounds}: "
                + ", ".join(f"{figures[f'{kind} steps_per_s'][-1]:,.0f}/s {kind}" for kind in KINDS)
            )
    figures["ratio"] = ratios(figures["sync steps_per_s"], figures["async steps_per_s"])
    return figures


ROWS = (
    *(Row(f"steps per second, {kind}", f"{kind} steps_per_s", "/s") for kind in KINDS),
    *(Row(f"CPU of the process per step, {kind}", f"{kind} cpu_us_per_step", " µs") for kind in KINDS),
    Row("steps per second of sync functions, of async ones", "ratio"),
)

AIMS = (Aim("steps per second of sync functions, of async ones", "ratio", at_least=0.33),)


def show(found: Found) -> str:
    """Figures and aims."""
    sizes = next(iter(found.values()))
    head = f"{sizes['runs']:,} runs of each kind in each of {sizes['rounds']} rounds."
    return f"{head}\n\n{by_store(found, ROWS)}\n\n{judged(found, AIMS)}"
