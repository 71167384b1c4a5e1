"""Comparison of two revisions: `python -m bench.against SRC`, where SRC is the `src` folder of another revision.

A process of each revision, on its own database of one server, does the same work in turns, so that other load on the machine
affects both. The work uses only the public Python API (`bench/against_worker.py`), and the other revision runs with the packages
that are installed here. Nothing is recorded: the table shows medians, and the ratios of the same round.

    git worktree add ../before COMMIT
    python -m bench.against ../before/src --store postgresql
"""

from __future__ import annotations

import argparse
import asyncio
import os
from contextlib import AsyncExitStack
from pathlib import Path

from bench.benchmark import BOTH, say
from bench.figures import LABELS, ratios, spread
from bench.processes import child
from bench.results import table
from bench.servers import second_store, temporary_store

HERE = Path(__file__).parents[1] / "src"
FIGURES = {
    "enqueue_cpu_us": "CPU per task, `enqueue_many`, µs",
    "drain_cpu_us": "CPU of the worker per drained task, µs",
    "drain_wall_us": "time per drained task, µs",
    "step_cpu_us": "CPU per step of a function, with its start and result, µs",
    "step_wall_us": "time per step of a function, µs",
    "link_cpu_us": "CPU per step of a workflow, with its start and result, µs",
    "link_wall_us": "time per step of a workflow, µs",
    "http_cpu_us": "CPU of the server per `POST /v1/tasks`, µs",
    "http_wall_us": "time per `POST /v1/tasks`, eight callers, µs",
}


async def compare(url: str, other: Path, rounds: int, size: int) -> dict[str, dict[str, list[float]]]:
    """The figures of all rounds on both sides, `now` and `before`."""
    found: dict[str, dict[str, list[float]]] = {side: {name: [] for name in FIGURES} for side in ("now", "before")}
    async with AsyncExitStack() as stack:
        stores = (url, await stack.enter_async_context(second_store(url)))
        sides = {}
        for side, source, store in zip(found, (HERE, other), stores, strict=True):
            path = os.pathsep.join(map(str, (source.resolve(), HERE.parent)))
            worker = child("bench.against_worker", str(size), store=store, PYTHONPATH=path)
            sides[side] = await stack.enter_async_context(worker)
        for number in range(rounds + 1):
            for side, process in sides.items():
                await process.tell("round")
                figures = await process.said()
                for name in FIGURES if number else ():  # the first round only warms up
                    found[side][name].append(figures[name])
            say(f"round {number} of {rounds}")
    return found


def show(found: dict[str, dict[str, list[float]]]) -> str:
    """Each figure on both sides, and the ratio of now to before."""
    now, before = found["now"], found["before"]
    rows = [
        (what, spread(now[name]), spread(before[name]), spread(ratios(now[name], before[name]))) for name, what in FIGURES.items()
    ]
    return table(("", "now", "before", "ratio"), rows)


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare this revision with another one.")
    parser.add_argument("source", type=Path, help="the src folder of the other revision")
    parser.add_argument("--store", choices=BOTH, default="postgresql")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument(
        "--size",
        type=int,
        default=10_000,
        help="tasks, steps of functions and steps of workflows in each round; a fourth of it as requests",
    )
    given = parser.parse_args()
    if not (given.source / "treadle").is_dir():
        parser.error(f"{given.source} has no package treadle")
    with temporary_store(given.store) as url:
        found = asyncio.run(compare(url, given.source, given.rounds, given.size))
    print(f"\n{LABELS[given.store]}, {given.rounds} rounds of {given.size:,}:\n\n{show(found)}")


if __name__ == "__main__":
    main()
