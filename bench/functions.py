"""Durable functions in one worker process.

*Runs* of ten no-op steps, 500 concurrently: each step is committed before the next begins, and concurrent runs share commits.
The time is from the start of the worker to the end of the last run; CPU per step is that of the whole process, including
SQLite's writer thread. *Gather*: a function that waits for 1,000 child tasks, and the
number of times it is claimed (2: to begin and to end). *Suspended* functions: the memory of each; a process keeps the newest
1,000 in memory and replays the others when they continue.
"""

from __future__ import annotations

import asyncio
import gc
import time
from dataclasses import dataclass
from typing import Any

from bench.benchmark import BOTH, Figures, Found, say
from bench.figures import Aim, Row, by_store, judged
from bench.processes import rss_mb
from treadle import BlockingFunctionContext, Engine
from treadle.settings import Settings

NAME = "functions"
TITLE = "Durable functions"
STORES = BOTH

STEPS = 10
CHILDREN = 1000


@dataclass(frozen=True)
class Sizes:
    """`runs` in each of `rounds`, `concurrency` at once; `sleepers` are suspended."""

    runs: int = 4000
    rounds: int = 5
    concurrency: int = 500
    sleepers: int = 10_000


SIZES = Sizes()
QUICK = Sizes(runs=100, rounds=2, sleepers=200)


async def measure(url: str, sizes: Sizes) -> Figures:
    """All figures for one store."""
    figures: Figures = {"runs": sizes.runs, "rounds": sizes.rounds}
    engine = make_engine(url)
    async with engine:
        await ten_steps(engine, 200, sizes.concurrency)  # warm
        for number in range(1, sizes.rounds + 1):
            for found in (await ten_steps(engine, sizes.runs, sizes.concurrency), await fan_out(engine)):
                for name, value in found.items():
                    figures.setdefault(name, []).append(value)
            say(f"round {number} of {sizes.rounds}: {figures['runs_per_s'][-1]:,.0f} runs/s")
        return figures | await suspended(engine, sizes.sleepers)


def make_engine(url: str) -> Engine:
    """An engine with the functions that are measured."""
    engine = Engine(url, settings=Settings(), emit=lambda _: None)

    async def nothing() -> None:
        return None

    @engine.function("ten")
    async def ten(payload: dict[str, Any], ctx: Any) -> None:
        for _ in range(STEPS):
            await ctx.step(nothing)

    @engine.function("ten_sync")
    def ten_sync(payload: dict[str, Any], ctx: BlockingFunctionContext) -> None:
        for _ in range(STEPS):
            ctx.step(nothing)

    @engine.handler("child")
    async def child(payload: dict[str, Any]) -> dict[str, Any]:
        return payload

    @engine.function("fan")
    async def fan(payload: dict[str, Any], ctx: Any) -> int:
        return len(await ctx.gather(*(ctx.call("child", {"n": n}) for n in range(CHILDREN))))

    @engine.function("sleeper")
    async def sleeper(payload: dict[str, Any], ctx: Any) -> None:
        await ctx.step(nothing)
        await ctx.wait_for("wake")

    return engine


class Countdown:
    """Told of runs that end; done when all have."""

    def __init__(self, engine: Engine, count: int) -> None:
        self._engine, self._left = engine, count
        self.done = asyncio.Event()
        engine.kernel.functions.on_finished.append(self._told)

    def _told(self, _: str) -> None:
        self._left -= 1
        if not self._left:
            self._engine.kernel.functions.on_finished.remove(self._told)
            self.done.set()


async def ten_steps(engine: Engine, runs: int, concurrency: int, name: str = "ten") -> dict[str, float]:
    """Runs per second, from the start of the worker to the last end; and what one step costs this process in CPU."""
    countdown = Countdown(engine, runs)
    began = time.perf_counter()
    for start in range(0, runs, 500):
        await asyncio.gather(*(engine.start_function(name) for _ in range(start, min(start + 500, runs))))
    started = time.perf_counter() - began
    began, cpu = time.perf_counter(), time.process_time()
    async with engine.worker(concurrency=concurrency):
        await countdown.done.wait()
        seconds, used = time.perf_counter() - began, time.process_time() - cpu
    return {
        "starts_per_s": runs / started,
        "runs_per_s": runs / seconds,
        "steps_per_s": runs * STEPS / seconds,
        "cpu_us_per_step": used / runs / STEPS * 1e6,
    }


async def fan_out(engine: Engine) -> dict[str, float]:
    """A gather over many children: claims of the parent, and how long it took."""
    async with engine.worker(concurrency=500):
        began = time.perf_counter()
        run = await engine.start_function("fan")
        await engine.run_result(run, timeout=600)
        seconds = time.perf_counter() - began
    (task,) = await engine.kernel.reads.list_tasks(kind="function", run_id=run.id)
    return {
        "gather_1000_parent_claims": task.claim_version,
        "gather_1000_s": seconds,
        "gather_1000_children_per_s": CHILDREN / seconds,
    }


async def suspended(engine: Engine, count: int) -> dict[str, float]:
    """Memory of each suspended function, beyond what the process had before."""
    gc.collect()
    before = rss_mb()
    for start in range(0, count, 500):
        await asyncio.gather(*(engine.start_function("sleeper") for _ in range(start, min(start + 500, count))))
    async with engine.worker(concurrency=500):
        while any(
            depth.ready or depth.running
            for depth in await engine.kernel.store.tasks.list_depths()
            if depth.queue.kind == "function"
        ):
            await asyncio.sleep(0.1)
        gc.collect()
        after = rss_mb()
    return {"suspended": count, "suspended_kb_each": (after - before) * 1024 / count}


ROWS = (
    Row("runs per second", "runs_per_s", "/s"),
    Row("steps per second", "steps_per_s", "/s"),
    Row("CPU of the process per step", "cpu_us_per_step", " µs"),
    Row("starts per second", "starts_per_s", "/s"),
    Row("gather over 1,000 children: claims of its parent", "gather_1000_parent_claims"),
    Row("gather over 1,000 children", "gather_1000_s", " s"),
    Row("gather over 1,000 children: children per second", "gather_1000_children_per_s", "/s"),
    Row("suspended: memory each", "suspended_kb_each", " KB"),
)

AIMS = (
    Aim("runs per second", "runs_per_s", "/s", at_least=2_000),
    Aim("runs per second (50 times DBOS's 22/s)", "runs_per_s", "/s", at_least=1_100),
    Aim("runs per second (20 times Absurd's 81/s)", "runs_per_s", "/s", at_least=1_620, stores=("postgresql",)),
    Aim("children per second of a gather", "gather_1000_children_per_s", "/s", at_least=10_000),
    Aim("claims of a parent that gathers", "gather_1000_parent_claims", at_most=2),
    Aim("memory of each suspended function", "suspended_kb_each", " KB", at_most=2),
)


def show(found: Found) -> str:
    """Figures and aims."""
    each = next(iter(found.values()))
    told = f"{each['runs']:,} runs in each of {each['rounds']} rounds; {each['suspended']:,} suspended functions."
    note = "Targets that name a peer use a figure measured on another day; the section on peers has figures of the same session."
    return f"{told}\n\n{by_store(found, ROWS)}\n\n{judged(found, AIMS)}\n\n{note}"
