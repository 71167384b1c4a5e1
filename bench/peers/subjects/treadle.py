"""Treadle, as `treadle worker --concurrency 2000` runs it: uvloop, the collector calmed; full history, every settle fenced.

CONCURRENCY did best of 100 (the default; about half of it), 500, 1,000, 2,000, 3,000 and 4,000.
"""

from __future__ import annotations

import asyncio
from typing import Any

from bench.peers.subjects import protocol
from bench.processes import run_lasting
from treadle import Engine, TaskSpec
from treadle.interfaces.cli.host import calm_collector
from treadle.settings import Settings

CONCURRENCY = 2000


def _engine(url: str) -> Engine:
    engine = Engine(url, settings=Settings())

    @engine.handler("noop")
    async def noop(payload: dict[str, Any]) -> None:
        return None

    @engine.handler("stamp")
    async def stamp(payload: dict[str, Any]) -> None:
        protocol.say_at()

    async def nothing() -> None:
        return None

    @engine.function("ten")
    async def ten(payload: dict[str, Any], ctx: Any) -> None:
        for _ in range(protocol.STEPS):
            await ctx.step(nothing)

    return engine


async def prepare(url: str) -> None:
    async with _engine(url):
        pass


async def fill(url: str, name: str, count: int) -> None:
    async with _engine(url) as engine:
        if name == "ten":
            for start in range(0, count, 500):
                await asyncio.gather(*(engine.start_function(name) for _ in range(start, min(start + 500, count))))
            return
        await engine.enqueue_many(TaskSpec(name=name) for _ in range(count))


async def enqueue(url: str, seconds: float) -> None:
    async with _engine(url) as engine:
        for callers in (1, protocol.CALLERS):
            await protocol.aenqueue_for(seconds, lambda: engine.enqueue("requeued", task_list="requeued"), callers)


async def work(url: str) -> None:
    async with _engine(url) as engine:
        async with engine.worker(concurrency=CONCURRENCY, task_lists=("requeued",)):
            pass  # what a worker loads when it first starts is loaded
        calm_collector()
        protocol.ready()
        protocol.started()
        async with engine.worker(concurrency=CONCURRENCY):
            await asyncio.Event().wait()


serve = work


async def watch(url: str, name: str, seconds: float) -> None:
    what = f"from {{0}}tasks where queue_id in (select id from {{0}}queues where name = '{name}' or name like '{name}@%')"
    if url.startswith("sqlite"):
        await asyncio.to_thread(protocol.watch_sqlite, url, seconds, what.format(""))
    else:
        await protocol.watch_postgres(url, seconds, what.format("treadle."))


async def send(url: str) -> None:
    async with _engine(url) as engine:
        await protocol.asend_each(lambda: engine.enqueue("stamp"))


if __name__ == "__main__":
    protocol.main(globals(), run_lasting)
