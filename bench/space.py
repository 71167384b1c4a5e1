"""Bytes of finished and waiting work, and what writing it costs, for sizing a store (docs/operations/sizing.md).

*Waiting* tasks are in the store and not taken; *finished* ones have been done by a worker, and their history is kept. The bytes
are those of the tables and indexes: pages in use in SQLite's file, `pg_total_relation_size` on PostgreSQL, for finished work
without the table of live tasks, whose dead rows autovacuum reclaims. The write-ahead log is what the server wrote for enqueueing
and doing one task. A payload of 1,000 bytes is returned as the result, so it is stored twice. Connections are those of one
process with an engine and a worker.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass
from typing import Any

import apsw

from bench.benchmark import BOTH, Figures, Found
from bench.figures import Row, by_store
from bench.servers import connect
from treadle import Engine, TaskSpec
from treadle.settings import Settings

NAME = "space"
TITLE = "Space"
STORES = BOTH

_SIZES = (
    "select sum(pg_total_relation_size(oid)) filter (where relname = 'tasks'), "
    "sum(pg_total_relation_size(oid)) filter (where relname <> 'tasks') "
    "from pg_class where relkind = 'r' and relnamespace = 'treadle'::regnamespace"
)
_CONNECTIONS = "select count(*) from pg_stat_activity where backend_type = 'client backend' and pid <> pg_backend_pid()"


@dataclass(frozen=True)
class Sizes:
    """So many tasks of each kind, and runs of a durable function of ten steps."""

    tasks: int = 5_000
    runs: int = 300


SIZES = Sizes()
QUICK = Sizes(tasks=1_000, runs=50)


@dataclass(frozen=True)
class Space:
    """The bytes of live and of kept work (on SQLite together), the position in the server's log, and its connections."""

    live: int
    kept: int
    log: int = 0
    connections: int = 0


async def space(url: str) -> Space:
    if url.startswith("sqlite"):
        file = apsw.Connection(url.removeprefix("sqlite:///"))
        try:
            file.execute("pragma wal_checkpoint(passive)").fetchall()
            return Space(0, (file.pragma("page_count") - file.pragma("freelist_count")) * file.pragma("page_size"))
        finally:
            file.close()
    connection = await connect(url)
    try:
        log = await connection.fetchval("select pg_current_wal_insert_lsn() - '0/0'::pg_lsn")
        live, kept = await connection.fetchrow(_SIZES)
        return Space(int(live), int(kept), int(log), await connection.fetchval(_CONNECTIONS))
    finally:
        await connection.close()


async def measure(url: str, sizes: Sizes) -> Figures:
    """Enqueue tasks, do them, and then the runs."""
    engine = Engine(url, settings=Settings(), emit=lambda _: None)

    @engine.handler("work")
    async def work(payload: Any) -> Any:
        return payload

    @engine.function("ten", version=1)
    async def ten(payload: Any, ctx: Any) -> None:
        for number in range(10):
            await ctx.step(lambda number=number: number, name=f"step{number}")

    figures: Figures = {"tasks": sizes.tasks}
    async with engine:
        await engine.enqueue("work")  # creates the queue
        for name, payload in (("small", {}), ("large", {"text": random.Random(1).randbytes(494).hex()})):
            before = await space(url)
            for first in range(0, sizes.tasks, 1000):
                count = min(1000, sizes.tasks - first)
                await engine.enqueue_many([TaskSpec(name="work", payload=payload) for _ in range(count)])
            waiting = await space(url)
            async with engine.worker(concurrency=500):
                await _drained(engine)
                done = await space(url)
                figures["connections"] = done.connections
            figures |= {
                f"{name}_waiting": (waiting.live + waiting.kept - before.live - before.kept) / sizes.tasks,
                f"{name}_finished": (done.kept - before.kept) / sizes.tasks,
                f"{name}_log": (done.log - before.log) / sizes.tasks,
                f"{name}_enqueue_log": (waiting.log - before.log) / sizes.tasks,
                f"{name}_settle_log": (done.log - waiting.log) / sizes.tasks,
            }
        async with engine.worker(concurrency=500):
            before = await space(url)
            for run in [await engine.start_function("ten") for _ in range(sizes.runs)]:
                await engine.run_result(run)
            done = await space(url)
        figures |= {"run": (done.kept - before.kept) / sizes.runs, "run_log": (done.log - before.log) / sizes.runs}
    return figures


async def _drained(engine: Engine) -> None:
    while any(depth.queue.name == "work" for depth in await engine.kernel.store.tasks.list_depths()):
        await asyncio.sleep(0.1)


_ROWS = (
    Row("a waiting task without payload", "small_waiting", " bytes"),
    Row("a finished task without payload", "small_finished", " bytes"),
    Row("a waiting task, payload of 1,000 bytes", "large_waiting", " bytes"),
    Row("a finished task, payload and result of 1,000 bytes", "large_finished", " bytes"),
    Row("a finished durable function of ten steps", "run", " bytes"),
)
_LOGGED = (
    Row("write-ahead log, a task without payload", "small_log", " bytes"),
    Row("of these: to enqueue it", "small_enqueue_log", " bytes"),
    Row("of these: to claim and end it", "small_settle_log", " bytes"),
    Row("write-ahead log, payload and result of 1,000 bytes", "large_log", " bytes"),
    Row("write-ahead log, a function of ten steps", "run_log", " bytes"),
    Row("connections of an engine with a worker", "connections"),
)


def show(found: Found) -> str:
    each = next(iter(found.values()))
    logged = {store: figures for store, figures in found.items() if store != "sqlite"}
    return f"{each['tasks']:,} tasks of each kind.\n\n{by_store(found, _ROWS)}\n\n{by_store(logged, _LOGGED)}"
