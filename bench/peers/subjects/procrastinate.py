"""Procrastinate on PostgreSQL: async tasks, a psycopg pool, LISTEN and NOTIFY (its default).

It fetches jobs one by one, so its levers are `concurrency` and the size of the pool: CONCURRENCY jobs at once on CONNECTIONS
connections. Finished jobs stay, with an event for each state (its default). Settling is by id.
"""

from __future__ import annotations

from procrastinate import App, PsycopgConnector
from procrastinate.tasks import Task

from bench.peers.subjects import protocol

CONCURRENCY = 30
CONNECTIONS = 10


def _app(url: str, connections: int = CONNECTIONS) -> App:
    app = App(connector=PsycopgConnector(conninfo=url, min_size=connections, max_size=connections))

    @app.task(name="noop", queue="bench")
    async def noop() -> None:
        return None

    @app.task(name="stamp", queue="bench")
    async def stamp() -> None:
        protocol.say_at()

    @app.task(name="requeued", queue="requeued")
    async def requeued() -> None:
        return None

    return app


def _task(app: App, name: str) -> Task:
    return app.tasks[name]


async def prepare(url: str) -> None:
    app = _app(url, 1)
    async with app.open_async():
        await app.schema_manager.apply_schema_async()


async def fill(url: str, name: str, count: int) -> None:
    app = _app(url, 1)
    async with app.open_async():
        for start in range(0, count, 1000):
            await _task(app, name).batch_defer_async(*({} for _ in range(min(1000, count - start))))


async def enqueue(url: str, seconds: float) -> None:
    app = _app(url)
    async with app.open_async():
        for callers in (1, protocol.CALLERS):
            await protocol.aenqueue_for(seconds, lambda: _task(app, "requeued").defer_async(), callers)


async def work(url: str) -> None:
    app = _app(url)
    async with app.open_async():
        await app.run_worker_async(queues=["bench"], concurrency=CONCURRENCY, wait=False, install_signal_handlers=False)
        protocol.ready()
        protocol.started()
        await app.run_worker_async(queues=["bench"], concurrency=CONCURRENCY, install_signal_handlers=False)


serve = work


async def watch(url: str, name: str, seconds: float) -> None:
    left = f"from procrastinate_jobs where status in ('todo', 'doing') and task_name = '{name}'"
    await protocol.watch_postgres(url, seconds, left)


async def send(url: str) -> None:
    app = _app(url, 1)
    async with app.open_async():
        await protocol.asend_each(lambda: _task(app, "stamp").defer_async())


if __name__ == "__main__":
    protocol.main(globals())
