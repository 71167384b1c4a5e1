"""PgQueuer on PostgreSQL, as its own command runs it: uvloop, an asyncpg pool, `durable` tables (its default).

The batch size is its lever for throughput: BATCH took the least CPU time, its own and the server's, of 10 (the default), 50, 100,
250, 500, 1,000 and 2,000. `max_concurrent_tasks` stays unlimited, its default and its fastest. A finished job is deleted; the log
keeps a line without payload and result. Settling is by id: a worker that lost its job to another settles it all the same.
"""

from __future__ import annotations

import asyncpg
import uvloop
from pgqueuer import PgQueuer
from pgqueuer.adapters.drivers.asyncpg import AsyncpgPoolDriver
from pgqueuer.domain.types import QueueExecutionMode
from pgqueuer.models import Job
from pgqueuer.queries import Queries

from bench.peers.subjects import protocol

BATCH = 1000


async def prepare(url: str) -> None:
    async with asyncpg.create_pool(url, min_size=1, max_size=2) as pool:
        queries = Queries(AsyncpgPoolDriver(pool))
        await queries.install()
        await queries.optimize_autovacuum()  # `pgq autovac`, which it recommends


async def fill(url: str, name: str, count: int) -> None:
    async with asyncpg.create_pool(url, min_size=1, max_size=2) as pool:
        queries = Queries(AsyncpgPoolDriver(pool))
        for start in range(0, count, 1000):
            some = min(1000, count - start)
            await queries.enqueue([name] * some, [b"{}"] * some, [0] * some)


async def enqueue(url: str, seconds: float) -> None:
    """Callers share ten connections."""
    async with asyncpg.create_pool(url, min_size=10, max_size=10) as pool:
        queries = Queries(AsyncpgPoolDriver(pool))
        for callers in (1, protocol.CALLERS):
            await protocol.aenqueue_for(seconds, lambda: queries.enqueue("requeued", b"{}"), callers)


async def work(url: str) -> None:
    async with asyncpg.create_pool(url, min_size=5, max_size=5) as pool:
        warm, worker = _worker(pool), _worker(pool)
        await warm.qm.run(mode=QueueExecutionMode.drain, batch_size=BATCH)
        protocol.ready()
        protocol.started()
        await worker.run(batch_size=BATCH)


def _worker(pool: asyncpg.Pool) -> PgQueuer:
    worker = PgQueuer(AsyncpgPoolDriver(pool))

    @worker.entrypoint("noop")
    async def noop(job: Job) -> None:
        return None

    @worker.entrypoint("stamp")
    async def stamp(job: Job) -> None:
        protocol.say_at()

    return worker


serve = work


async def watch(url: str, name: str, seconds: float) -> None:
    await protocol.watch_postgres(url, seconds, f"from pgqueuer where entrypoint = '{name}'")


async def send(url: str) -> None:
    async with asyncpg.create_pool(url, min_size=1, max_size=1) as pool:
        queries = Queries(AsyncpgPoolDriver(pool))
        await protocol.asend_each(lambda: queries.enqueue("stamp", b"{}"))


if __name__ == "__main__":
    protocol.main(globals(), uvloop.run)
