"""Absurd on PostgreSQL: its Python SDK, async, with the schema that `absurdctl` brings along.

A worker has one connection, which all its tasks share; CONCURRENCY tasks are claimed together and run at once. It polls: every
0.25 s when there is nothing (its default). Tasks, runs and checkpoints stay. A run that lost its claim cannot complete.
"""

from __future__ import annotations

import psycopg
from absurd_sdk import AsyncAbsurd
from absurdctl import BUNDLED_SCHEMA_SQL

from bench.peers.subjects import protocol

CONCURRENCY = 20


async def _client(url: str) -> AsyncAbsurd:
    """A client that is connected, with the tasks."""
    app = AsyncAbsurd(await psycopg.AsyncConnection.connect(url, autocommit=True), queue_name="bench")

    async def nothing() -> None:
        return None

    @app.register_task(name="noop")
    async def noop(params: object, ctx: object) -> None:
        return None

    @app.register_task(name="stamp")
    async def stamp(params: object, ctx: object) -> None:
        protocol.say_at()

    @app.register_task(name="ten")
    async def ten(params: object, ctx: object) -> None:
        for number in range(protocol.STEPS):
            await ctx.step(f"step {number}", nothing)  # type: ignore[attr-defined]

    return app


async def prepare(url: str) -> None:
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        await connection.execute(BUNDLED_SCHEMA_SQL)
        for queue in ("bench", "requeued"):
            await AsyncAbsurd(connection, queue_name=queue).create_queue()


async def fill(url: str, name: str, count: int) -> None:
    app = await _client(url)
    async with app._conn.transaction():
        for _ in range(count):
            await app.spawn(name, {})


async def enqueue(url: str, seconds: float) -> None:
    """A connection for each caller: a client has one."""
    apps = [await _client(url) for _ in range(protocol.CALLERS)]
    calls = [lambda app=app: app.spawn("requeued", {}, queue="requeued") for app in apps]
    await protocol.aenqueue_with(seconds, calls[:1])
    await protocol.aenqueue_with(seconds, calls)


async def work(url: str) -> None:
    app = await _client(url)
    await app.work_batch()  # nothing is there yet: what a first claim loads is loaded
    protocol.ready()
    protocol.started()
    await app.start_worker(concurrency=CONCURRENCY)


serve = work


async def watch(url: str, name: str, seconds: float) -> None:
    left = f"from absurd.t_bench where state not in ('completed', 'failed', 'cancelled') and task_name = '{name}'"
    await protocol.watch_postgres(url, seconds, left)


async def send(url: str) -> None:
    app = await _client(url)
    await protocol.asend_each(lambda: app.spawn("stamp", {}))


if __name__ == "__main__":
    protocol.main(globals())
