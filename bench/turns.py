"""Turns between fairness keys: the cost for tasks that have one, and the wait of a small tenant behind a large one.

*Drain* claims and ends the tasks of one queue through the store, 100 at a time, alternately without keys and with 100 keys; the
tasks are enqueued in batches of 1000. *Wait* is the number of claimed tasks until the last of ten tasks of a second tenant, which
come after all tasks of the first one.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from bench.benchmark import BOTH, Figures, Found, say
from bench.figures import Aim, Row, by_store, judged, ratios
from treadle import Engine, TaskSpec
from treadle.kernel.store.units import Finish, Unit
from treadle.model.names import DEFAULT_LIST, DEFAULT_NAMESPACE, HANDLER, QueueKey
from treadle.settings import Settings

NAME = "turns"
TITLE = "Turns between tenants"
STORES = BOTH
BATCH = 100
KEYS = 100


@dataclass(frozen=True)
class Sizes:
    """`tasks` are drained in each of `rounds`; `backlog` is that of the large tenant."""

    tasks: int = 10_000
    rounds: int = 5
    backlog: int = 100_000


SIZES = Sizes()
QUICK = Sizes(tasks=1000, rounds=2, backlog=2000)


async def measure(url: str, sizes: Sizes) -> Figures:
    """Enqueue and drain with and without keys, in turns; then the wait of a small tenant."""
    figures: Figures = {"rounds": sizes.rounds, "backlog": sizes.backlog}
    async with Engine(url, settings=Settings()) as engine:
        for number in range(sizes.rounds):
            for kind, keys in (("plain", 0), ("keyed", KEYS)):
                name = f"bench.{kind}{number}"
                started = time.perf_counter()
                await fill(engine, name, sizes.tasks, keys)
                figures.setdefault(f"enqueue_{kind}", []).append(sizes.tasks / (time.perf_counter() - started))
                started = time.perf_counter()
                await drain(engine, name, sizes.tasks)
                figures.setdefault(f"drain_{kind}", []).append(sizes.tasks / (time.perf_counter() - started))
            say(f"round {number + 1}: {figures['drain_plain'][-1]:,.0f}/s without keys, {figures['drain_keyed'][-1]:,.0f}/s with")
        await fill(engine, "bench.large", sizes.backlog, 1)
        started = time.perf_counter()
        await engine.enqueue_many(TaskSpec(name="bench.large", fairness_key="small") for _ in range(10))
        figures["enqueue_small_ms"] = (time.perf_counter() - started) * 1000
        figures["wait"] = await drain(engine, "bench.large", 1000, until=("small", 10), batch=1)
    figures["drain_ratio"] = ratios(figures["drain_keyed"], figures["drain_plain"])
    figures["enqueue_ratio"] = ratios(figures["enqueue_keyed"], figures["enqueue_plain"])
    return figures


async def fill(engine: Engine, name: str, count: int, keys: int) -> None:
    """Enqueue tasks, with keys in turn if there are any."""
    for first in range(0, count, 1000):
        numbers = range(first, min(first + 1000, count))
        await engine.enqueue_many(TaskSpec(name=name, fairness_key=f"k{n % keys}" if keys else None) for n in numbers)


async def drain(engine: Engine, name: str, most: int, until: tuple[str, int] | None = None, batch: int = BATCH) -> int:
    """Claim and end tasks; return how many, up to the last of the key `until`."""
    store, taken, found = engine.kernel.store, 0, 0
    queue = QueueKey(DEFAULT_NAMESPACE, HANDLER, DEFAULT_LIST, name)
    queue_id = (await store.tasks.queue_ids([queue]))[queue]
    while taken < most and (tasks := await store.tasks.claim([queue_id], "bench", 60_000, batch)):
        await store.commit([Unit(task.claim, Finish("succeed", "completed", result="{}")) for task in tasks])
        taken += len(tasks)
        found += sum(task.fairness_key == until[0] for task in tasks) if until else 0
        if until and found >= until[1]:
            break
    return taken


ROWS = (
    Row("enqueue without keys", "enqueue_plain", "/s"),
    Row("enqueue with 100 keys", "enqueue_keyed", "/s"),
    Row("drain without keys", "drain_plain", "/s"),
    Row("drain with 100 keys", "drain_keyed", "/s"),
    Row("enqueue ten tasks behind the backlog of another tenant", "enqueue_small_ms", " ms"),
)

AIMS = (
    Aim("drain with keys, of the one without", "drain_ratio", at_least=0.8),
    Aim("tasks claimed until the last of the ten", "wait", at_most=21),
)


def show(found: Found) -> str:
    """Figures and aims."""
    each = next(iter(found.values()))
    return f"Backlog of {each['backlog']:,} tasks; {each['rounds']} rounds.\n\n{by_store(found, ROWS)}\n\n{judged(found, AIMS)}"
