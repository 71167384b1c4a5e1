"""Nested plain facets: rows that need no handler, so that all of the time is the engine's own.

*Tree*: a chain of facets, each of which calls the next one twice. *Fan*: a foreach in a foreach in a foreach. Both are run by the
pure evaluator on rows in memory (`treadle.testing.run_workflow`) and by an engine with one worker, in the same process and in
turns; *ratio* compares them at the same size. *Growth* is the exponent of the engine's CPU time over the number of rows, from the
smallest size to the largest: 1 is linear, 2 is quadratic.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from bench.benchmark import BOTH, Figures, Found, say
from bench.figures import Aim, Row, by_store, judged, ratios
from treadle import Engine
from treadle.interfaces.cli.host import calm_collector
from treadle.settings import Settings
from treadle.testing.workflows import run_workflow

NAME = "nested"
TITLE = "Nested facets"
STORES = BOTH


@dataclass(frozen=True)
class Sizes:
    """`levels` of the largest tree and `width` of the widest fan; the smaller sizes follow from them."""

    levels: int = 13
    width: int = 30
    rounds: int = 3


SIZES = Sizes()
QUICK = Sizes(levels=8, width=8, rounds=1)


class Program(NamedTuple):
    """A program, the inputs of its workflow, and the outputs."""

    source: str
    inputs: dict[str, Any]
    outputs: dict[str, Any]


FAN = """
facet Leaf(n: Long) => (n: Long) andThen { yield Leaf(n = $.n) }
facet Inner(list: Json) => (s: Json) andThen foreach x in $.list { a = Leaf(n = $.x) yield Inner(s = [a.n]) }
facet Middle(list: Json) => (s: Json) andThen foreach x in $.list { a = Inner(list = $.list) yield Middle(s = [a.s[0]]) }
workflow Nested(list: Json) => (s: Json) andThen foreach x in $.list { a = Middle(list = $.list) yield Nested(s = [$.x]) }
"""


def tree(levels: int) -> Program:
    """Facets that each call the next one twice: 4 * 2**levels rows."""
    facets = ["facet F0(n: Long) => (s: Long) andThen { yield F0(s = $.n) }"]
    for level in range(1, levels + 1):
        inner = f"F{level - 1}"
        facets.append(
            f"facet F{level}(n: Long) => (s: Long) andThen {{\n"
            f"  a = {inner}(n = $.n)\n  b = {inner}(n = $.n)\n  yield F{level}(s = a.s + b.s)\n}}"
        )
    facets.append(f"workflow Nested() => (s: Long) andThen {{ t = F{levels}(n = 1) yield Nested(s = t.s) }}")
    return Program("\n".join(facets), {}, {"s": 2**levels})


def fan(width: int) -> Program:
    """A foreach in a foreach in a foreach, each over as many elements: about 3 * width**3 rows."""
    return Program(FAN, {"list": list(range(width))}, {"s": list(range(width))})


SHAPES: dict[str, Callable[[int], Program]] = {"tree": tree, "fan": fan}


async def measure(url: str, sizes: Sizes) -> Figures:
    """Microseconds per row of both shapes at three sizes, in the evaluator and in the engine."""
    figures: Figures = {"rounds": sizes.rounds}
    steps = {
        "tree": [sizes.levels - 4, sizes.levels - 2, sizes.levels],
        "fan": [sizes.width // 3, sizes.width * 2 // 3, sizes.width],
    }
    rows: dict[str, list[int]] = {}
    engine = Engine(url, settings=Settings(), emit=lambda _: None)
    async with engine, engine.worker():
        await in_engine(engine, tree(3))
        calm_collector()  # as a worker process does
        for _ in range(sizes.rounds):
            for shape, make in SHAPES.items():
                for place, size in enumerate(steps[shape]):
                    program = make(size)
                    wall, cpu = in_evaluator(program)
                    count, engine_wall, engine_cpu = await in_engine(engine, program)
                    rows.setdefault(shape, [0, 0, 0])[place] = count
                    taken = {"evaluator": wall, "evaluator_cpu": cpu, "engine": engine_wall, "engine_cpu": engine_cpu}
                    for which, seconds in taken.items():
                        figures.setdefault(f"{shape}_{place}_{which}_us", []).append(seconds / count * 1e6)
                    say(f"{shape} of {count:,} rows: {wall:.2f} s in the evaluator, {engine_wall:.2f} s in the engine")
    for shape, counts in rows.items():
        figures[f"{shape}_rows"] = counts
        least, most = f"{shape}_0", f"{shape}_{len(counts) - 1}"
        figures[f"{shape}_ratio"] = ratios(figures[f"{most}_engine_us"], figures[f"{most}_evaluator_us"])
        figures[f"{shape}_cpu_ratio"] = ratios(figures[f"{most}_engine_cpu_us"], figures[f"{most}_evaluator_cpu_us"])
        spans = ratios(figures[f"{most}_engine_cpu_us"], figures[f"{least}_engine_cpu_us"])
        figures[f"{shape}_growth"] = [1 + math.log(span) / math.log(counts[-1] / counts[0]) for span in spans]
    return figures


def in_evaluator(program: Program) -> tuple[float, float]:
    """Seconds of wall and CPU time."""
    started, used = time.perf_counter(), time.process_time()
    assert run_workflow(program.source, "Nested", program.inputs) == program.outputs
    return time.perf_counter() - started, time.process_time() - used


async def in_engine(engine: Engine, program: Program) -> tuple[int, float, float]:
    """The rows of the run, and seconds of wall and CPU time."""
    started, used = time.perf_counter(), time.process_time()
    run = await engine.start_run([("nested.afl", program.source)], "Nested", program.inputs)
    assert await engine.run_result(run, timeout=600) == program.outputs
    taken = time.perf_counter() - started, time.process_time() - used
    return (await engine.kernel.runs.get_run(run.id)).steps, *taken


ROWS = tuple(
    Row(f"{shape}, {size}, {words}", f"{shape}_{place}_{which}_us", " µs per row")
    for shape in SHAPES
    for place, size in enumerate(("small", "medium", "large"))
    for which, words in (
        ("evaluator", "evaluator"),
        ("engine", "engine"),
        ("evaluator_cpu", "evaluator, CPU"),
        ("engine_cpu", "engine, CPU"),
    )
)

AIMS = tuple(
    aim
    for shape in SHAPES
    for aim in (
        Aim(f"{shape}: engine against the evaluator, large", f"{shape}_ratio", at_most=3.0),
        Aim(f"{shape}: growth", f"{shape}_growth", at_most=1.1),
    )
)


def show(found: Found) -> str:
    """Figures and aims."""
    each = next(iter(found.values()))
    counts = "; ".join(f"{shape} of {', '.join(f'{count:,}' for count in each[f'{shape}_rows'])} rows" for shape in SHAPES)
    return f"{counts}; {each['rounds']} rounds.\n\n{by_store(found, ROWS)}\n\n{judged(found, AIMS)}"
