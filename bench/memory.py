"""The memory of a worker process while it processes a large number of no-op tasks.

One process enqueues tasks and prunes finished ones, so that the store does not grow without bound; another process is a worker
like `treadle worker`. Its resident memory is sampled after every 50,000 tasks (a twentieth of all). Memory is *flat* if the
median of the last fifth of the samples is at most 1.1 times that of the second fifth (the first fifth is warm-up).
"""

from __future__ import annotations

import asyncio
import statistics
import time
from dataclasses import dataclass

from bench.benchmark import BOTH, Figures, Found, say
from bench.figures import LABELS, Aim, Row, by_store, judged
from bench.processes import Child, child
from bench.results import table
from treadle import Engine, TaskSpec
from treadle.settings import Settings

NAME = "memory"
TITLE = "Memory over many tasks"
STORES = BOTH
TASK = "bench.steady"
SAMPLES = 20
CHUNK = 5_000
"""Tasks that are enqueued in one call."""


@dataclass(frozen=True)
class Sizes:
    """All tasks."""

    tasks: int = 1_000_000


SIZES = Sizes()
QUICK = Sizes(tasks=10_000)


async def measure(url: str, sizes: Sizes) -> Figures:
    """Feed, follow and prune, a sample's worth of tasks at a time ahead of the worker."""
    every = sizes.tasks // SAMPLES
    started = time.perf_counter()
    series: list[float] = []
    async with (
        Engine(url, settings=Settings(), emit=lambda _: None) as engine,
        child("bench.queue_worker", "steady", TASK, str(every), store=url) as worker,
    ):
        first = await worker.said()
        fed = pruned = 0
        pruning: asyncio.Task[int] | None = None
        while len(series) < SAMPLES:
            while fed < min(every * (len(series) + 2), sizes.tasks):
                fed += await feed(engine, min(CHUNK, sizes.tasks - fed))
            series.append((await next_sample(worker, len(series) * every))["rss_mb"])
            say(f"{len(series) * every:,} tasks: {series[-1]:.1f} MB")
            if pruning is None or pruning.done():
                pruned += pruning.result() if pruning else 0
                pruning = asyncio.create_task(prune(engine))
        seconds = time.perf_counter() - started
        pruned += await pruning if pruning else 0
    second, last = [statistics.median(series[at : at + SAMPLES // 5]) for at in (SAMPLES // 5, SAMPLES - SAMPLES // 5)]
    return {
        "tasks": sizes.tasks,
        "seconds": seconds,
        "tasks_per_s": sizes.tasks / seconds,
        "pruned": pruned,
        "begin_rss_mb": first["rss_mb"],
        "rss_mb": series,
        "second_fifth_mb": second,
        "last_fifth_mb": last,
        "growth": last / second,
    }


async def feed(engine: Engine, count: int) -> int:
    """So many tasks; how many."""
    await engine.enqueue_many(TaskSpec(name=TASK, payload={"n": n}) for n in range(count))
    return count


async def prune(engine: Engine) -> int:
    """Remove what has ended, as retention would; how many tasks that were."""
    return (await engine.kernel.retention.prune(older_than=0)).tasks


async def next_sample(worker: Child, after: int) -> dict[str, float]:
    """The worker's first report after it has processed more than `after` tasks."""
    while (said := await worker.said())["handled"] <= after:
        pass
    return dict(said)


ROWS = (
    Row("before the first task", "begin_rss_mb", " MB"),
    Row("second fifth, median", "second_fifth_mb", " MB"),
    Row("last fifth, median", "last_fifth_mb", " MB"),
    Row("growth", "growth"),
    Row("tasks pruned meanwhile", "pruned"),
    Row("tasks per second, while tasks are added and pruned", "tasks_per_s", "/s"),
    Row("total time", "seconds", " s"),
)

AIMS = (Aim("growth from the second to the last fifth", "growth", at_most=1.1),)


def show(found: Found) -> str:
    """Figures, the series, and the aim."""
    each = next(iter(found.values()))
    numbers = [f"{n * each['tasks'] // SAMPLES:,}" for n in range(1, SAMPLES + 1)]
    columns = [[f"{value:.1f}" for value in figures["rss_mb"]] for figures in found.values()]
    series = table(("tasks done", *(f"{LABELS[store]}, MB" for store in found)), zip(numbers, *columns, strict=True))
    return f"{each['tasks']:,} tasks.\n\n{by_store(found, ROWS)}\n\n{judged(found, AIMS)}\n\n{series}"
