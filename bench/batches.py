"""Batch handlers and limit keys: their cost, against the same tasks with a plain handler and without keys, in each round.

No-op tasks that are enqueued before a worker starts, in this process; the time ends when the handler has received the last one.
*Batch* receives up to 100 payloads in a call. *One key* counts all tasks under one key, of which 200 may run at a time; *two keys*
count under that key and under one of 100 others, of which 20 may run at a time each. *Two keys with room* have limits that are
never reached. *Service* calls a service that takes 1 ms for one call at a time, once for each task or for each batch. *CPU* is that
of this process, which on SQLite includes the database; the *time* has both.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Any

from bench.benchmark import BOTH, Figures, Found, say
from bench.figures import Aim, Row, by_store, judged, ratios
from bench.processes import CHILD_TIMEOUT
from treadle import Engine, TaskSpec
from treadle.settings import Settings

NAME = "batches"
TITLE = "Batch handlers and limit keys"
STORES = BOTH
CUSTOMERS = 100
WARM_UP = 100
"""Tasks of each kind before the first round, which load the code."""
KINDS = ("plain", "batch", "one key", "two keys", "two keys with room", "service", "service, batch")
COMPARED = KINDS[1:5]
"""The kinds that are compared with plain tasks; the last two are compared with one another."""
HANDLERS = {"batch": "many", "service": "ask", "service, batch": "ask_many"}
"""The handlers of kinds; the others have the first one."""
LIMITS = {"two keys": ("service", 200, "customer", 20), "two keys with room": ("open", 1_000_000, "guest", 1_000_000)}
"""A key and its maximum, and those of each of `CUSTOMERS` keys, by kind."""


@dataclass(frozen=True)
class Sizes:
    """`tasks` of each kind in each of `rounds`."""

    tasks: int = 2000
    rounds: int = 5


SIZES = Sizes()
QUICK = Sizes(tasks=200, rounds=2)


class Counter:
    """Counts the payloads that handlers receive."""

    def __init__(self) -> None:
        self.left = 0
        self.done = asyncio.Event()

    def expect(self, count: int) -> None:
        """Wait for that many payloads from now."""
        self.left = count
        self.done.clear()

    def receive(self, count: int) -> None:
        """Count payloads."""
        self.left -= count
        if not self.left:
            self.done.set()


async def measure(url: str, sizes: Sizes) -> Figures:
    """Handle the tasks of each kind, one kind after the other, in every round."""
    figures: Figures = {"rounds": sizes.rounds, "tasks": sizes.tasks}
    engine, counter = Engine(url, settings=Settings()), Counter()
    for key, most, own, own_most in LIMITS.values():
        engine.declare.limit(key, max=most)
        for number in range(CUSTOMERS):
            engine.declare.limit(f"{own}:{number}", max=own_most)

    @engine.handler("one")
    async def one(payload: dict[str, Any]) -> None:
        counter.receive(1)

    @engine.handler("many", batch=100, within=0.02)
    async def many(payloads: list[dict[str, Any]]) -> list[None]:
        counter.receive(len(payloads))
        return [None] * len(payloads)

    service = asyncio.Lock()

    @engine.handler("ask")
    async def ask(payload: dict[str, Any]) -> None:
        async with service:
            await asyncio.sleep(0.001)
        counter.receive(1)

    @engine.handler("ask_many", batch=100, within=0.02)
    async def ask_many(payloads: list[dict[str, Any]]) -> list[None]:
        async with service:
            await asyncio.sleep(0.001)
        counter.receive(len(payloads))
        return [None] * len(payloads)

    async with engine:
        for kind in KINDS:
            await handle(engine, counter, kind, WARM_UP)
        for number in range(sizes.rounds):
            for kind in KINDS:
                seconds, cpu = await handle(engine, counter, kind, sizes.tasks)
                figures.setdefault(kind, []).append(sizes.tasks / seconds)
                figures.setdefault(f"{kind} cpu", []).append(cpu / sizes.tasks * 1e6)
            say(f"round {number + 1}: " + ", ".join(f"{figures[f'{kind} cpu'][-1]:,.0f} µs {kind}" for kind in KINDS))
    for kind in COMPARED:
        figures[f"{kind} ratio"] = ratios(figures[f"{kind} cpu"], figures["plain cpu"])
        figures[f"{kind} time"] = ratios(figures["plain"], figures[kind])
    figures["service ratio"] = ratios(figures["service, batch"], figures["service"])
    return figures


async def handle(engine: Engine, counter: Counter, kind: str, count: int) -> tuple[float, float]:
    """Enqueue tasks of the kind, and handle them; return the seconds and the CPU seconds that they took."""
    counter.expect(count)
    await engine.enqueue_many(make_task(kind, n) for n in range(count))
    started, cpu = time.perf_counter(), time.process_time()
    async with asyncio.timeout(CHILD_TIMEOUT), engine.worker():
        await counter.done.wait()
        return time.perf_counter() - started, time.process_time() - cpu


def make_task(kind: str, number: int) -> TaskSpec:
    """Return the task of the kind with that number."""
    keys = ["service"] if kind == "one key" else None
    if kind in LIMITS:
        key, _, own, _ = LIMITS[kind]
        keys = [key, f"{own}:{number % CUSTOMERS}"]
    return TaskSpec(name=HANDLERS.get(kind, "one"), payload={"n": number}, limit_key=keys)


ROWS = (
    *(Row(kind, kind, "/s") for kind in KINDS),
    *(Row(f"CPU per task, {kind}", f"{kind} cpu", " µs") for kind in KINDS),
    *(Row(f"CPU of {kind}, of plain", f"{kind} ratio") for kind in COMPARED),
    *(Row(f"time of {kind}, of plain", f"{kind} time") for kind in COMPARED),
    Row("tasks per second of batches for the service, of single ones", "service ratio"),
)
AIMS = (
    *(Aim(f"time of {kind}, of plain", f"{kind} time", at_most=1.15) for kind in LIMITS),
    Aim("tasks per second of batches for the service, of single ones", "service ratio", at_least=5),
)


def show(found: Found) -> str:
    """The figures."""
    sizes = next(iter(found.values()))
    tables = f"{by_store(found, ROWS)}\n\n{judged(found, AIMS)}"
    return f"{sizes['tasks']:,} tasks of each kind in each of {sizes['rounds']} rounds.\n\n{tables}"
