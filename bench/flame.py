"""A flame graph of a busy worker: `python -m bench.flame [--store sqlite|postgresql] [--tasks N]`.

A worker process works through no-op tasks while py-spy (in the extra `dev`) looks at it 500 times a second. What it saw becomes a
flame graph, docs/images/flame-STORE.svg: each bar is a function, its width the share of the time in it and in what it called, which
stands on it. Beside it, the shares of each part are printed.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

from bench.queue_worker import noop_engine
from bench.servers import temporary_store
from treadle import TaskSpec
from treadle.settings import child_environment

IMAGES = Path(__file__).parents[1] / "docs" / "images"
RATE = 500
WIDTH, HEIGHT, LEAST = 1200, 17, 0.002
"""Pixels of the picture and of a bar; the least share that is drawn."""

PARTS = (
    ("the database's driver", "#d98b5f", ("asyncpg", "apsw")),
    ("the store", "#e3b04b", ("treadle/stores",)),
    ("the kernel", "#7fa650", ("treadle/kernel", "treadle/model")),
    ("the worker", "#5b9bb5", ("treadle/workers", "treadle/engine")),
    ("the event loop", "#a58bc0", ("asyncio", "selectors")),
    ("other", "#b8b8b8", ("",)),
)
"""The part of the engine to which a function belongs, by its file; the first match wins."""

NAME = "bench.flame"


@dataclass(slots=True)
class Bar:
    """A function, called from the one below it."""

    name: str
    file: str = ""
    samples: int = 0
    above: dict[tuple[str, str], Bar] = field(default_factory=dict)


async def work(count: int) -> None:
    """The process that is looked at."""
    from treadle.interfaces.cli.host import calm_collector

    engine = noop_engine(NAME)
    async with engine:
        async with engine.worker(concurrency=2000, task_lists=("none",)):
            pass  # leave the imports of the first worker out of the graph
        calm_collector()
        async with engine.worker(concurrency=2000) as host:
            while host.worker.handled < count:
                await asyncio.sleep(0.01)


async def fill(url: str, count: int) -> None:
    """Tasks to do."""
    from treadle import Engine
    from treadle.settings import Settings

    async with Engine(url, settings=Settings()) as engine:
        await engine.enqueue_many(TaskSpec(name=NAME, payload={"n": n}) for n in range(count))


def read(raw: str) -> Bar:
    """The bars of the samples, one stack per line; only those of the event loop, without `work` and imports."""
    root = Bar("all")
    for line in raw.splitlines():
        stack, _, count = line.rpartition(" ")
        frames = [_frame(text) for text in stack.split(";")]
        begin = next((place for place, (name, _) in enumerate(frames) if name.endswith("_run_once")), None)
        if begin is None or any(name == "work" or file.startswith("<frozen importlib") for name, file in frames):
            continue
        bar = root
        bar.samples += int(count)
        for name, file in frames[begin:]:
            bar = bar.above.setdefault((name, file), Bar(name, file))
            bar.samples += int(count)
    return root


def _frame(text: str) -> tuple[str, str]:
    """`function (path/file.py:12)` as the function and its file."""
    found = re.match(r"(.*) \((.*?)(?::\d+)?\)$", text)
    return (found[1], found[2]) if found else (text, "")


def part_of(file: str) -> int:
    """Which of `PARTS` a file belongs to."""
    return next(number for number, (_, _, places) in enumerate(PARTS) if any(place in file for place in places))


def shares(root: Bar) -> dict[str, float]:
    """The share of each part in the total time: the functions' own time, without callees."""
    own: Counter[str] = Counter()

    def walk(bar: Bar) -> None:
        own[PARTS[part_of(bar.file)][0]] += bar.samples - sum(each.samples for each in bar.above.values())
        for each in bar.above.values():
            walk(each)

    walk(root)
    return {name: own[name] / root.samples for name, _, _ in PARTS}


def draw(root: Bar, title: str) -> str:
    """The picture."""
    bars: list[str] = []
    deepest = 0

    def put(bar: Bar, x: float, depth: int) -> None:
        nonlocal deepest
        share = bar.samples / root.samples
        if share < LEAST:
            return
        deepest = max(deepest, depth)
        width = share * WIDTH
        text = escape(bar.name[: int(width / 6.5)]) if width > 26 else ""
        y = -(depth + 1) * HEIGHT
        fill = PARTS[part_of(bar.file)][1]
        bars.append(
            f"<g><title>{escape(f'{bar.name} ({bar.file})')}: {share:.1%}</title>"
            f'<rect x="{x:.1f}" y="{y}" width="{max(width - 0.5, 0.5):.1f}" height="{HEIGHT - 1}" fill="{fill}"/>'
            f'<text x="{x + 3:.1f}" y="{y + 12}">{text}</text></g>'
        )
        for each in sorted(bar.above.values(), key=lambda each: each.name):
            put(each, x, depth + 1)
            x += each.samples / root.samples * WIDTH

    put(root, 0.0, 0)
    top = (deepest + 1) * HEIGHT
    legend = "".join(
        f'<rect x="{place * 190}" y="30" width="12" height="12" fill="{fill}"/>'
        f'<text x="{place * 190 + 17}" y="40">{escape(name)}</text>'
        for place, (name, fill, _) in enumerate(PARTS)
    )
    size = f'viewBox="0 0 {WIDTH} {top + 60}" width="{WIDTH}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="monospace" font-size="11">'
        f'<rect width="100%" height="100%" fill="#fbfaf7"/><text x="0" y="16" font-size="13">{escape(title)}</text>{legend}'
        f'<g transform="translate(0 {top + 55})">{"".join(bars)}</g></svg>\n'
    )


def main() -> None:
    """Look, draw and tell."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", choices=["sqlite", "postgresql"], default="postgresql")
    parser.add_argument("--tasks", type=int, default=150_000)
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.work:
        asyncio.run(work(chosen.tasks))  # on Python's own event loop: of uvloop nothing could be seen
        return
    with temporary_store(chosen.store) as url, tempfile.TemporaryDirectory() as folder:
        asyncio.run(fill(url, chosen.tasks))
        raw = Path(folder) / "stacks"
        subprocess.run(
            [Path(sys.executable).with_name("py-spy"), "record", "--rate", str(RATE), "--format", "raw", "--output", raw, "--",
             sys.executable, "-m", "bench.flame", "--work", "--tasks", str(chosen.tasks)],
            env=child_environment(TREADLE_STORE=url), check=True,
        )  # fmt: skip
        root = read(raw.read_text())
    target = IMAGES / f"flame-{chosen.store}.svg"
    target.write_text(draw(root, f"A worker on {chosen.store}: {chosen.tasks:,} no-op tasks, {root.samples:,} looks"))
    for name, share in shares(root).items():
        print(f"{share:6.1%}  {name}")
    print(f"written: {target.name}")


if __name__ == "__main__":
    main()
