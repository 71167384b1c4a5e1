"""DBOS on PostgreSQL and on SQLite: workflows on a queue, as its documentation shows them, enqueued by its client.

Its queues poll, and a poll takes as many workflows as there is room for. For throughput it polls every 50 ms; waiting for work,
every second, its default. Room is without limit, its default: limits of 20 and 50 at once did fewer no-op workflows, and of ten
steps about as many or, in some rounds, up to a third more. Workflows, steps and results stay. A workflow that was given to another
execution cannot record its outcome.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import sqlalchemy
from dbos import DBOS, DBOSClient, DBOSConfig

from bench.peers.subjects import protocol

POLLING = 0.05


@DBOS.step()
def nothing() -> None:
    return None


@DBOS.workflow(name="noop")
def noop() -> None:
    return None


@DBOS.workflow(name="stamp")
def stamp() -> None:
    protocol.say_at()


@DBOS.workflow(name="ten")
def ten() -> None:
    for _ in range(protocol.STEPS):
        nothing()


def _config(url: str) -> DBOSConfig:
    return {
        "name": "bench",
        "system_database_url": url,
        "application_version": "1",
        "log_level": "ERROR",
    }


def _launch(url: str) -> None:
    DBOS(config=_config(url))
    DBOS.launch()


def prepare(url: str) -> None:
    _launch(url)
    DBOS.register_queue("bench", worker_concurrency=0)
    DBOS.destroy()


def _client(url: str, connections: int = 1) -> DBOSClient:
    return DBOSClient(system_database_url=url, system_database_pool_size=connections)


def _options(name: str, queue: str) -> Any:
    return {"workflow_name": name, "queue_name": queue, "application_name": "bench"}


def _enqueue(client: DBOSClient, name: str, queue: str = "bench") -> Callable[[], Any]:
    return lambda: client.enqueue(_options(name, queue))


def fill(url: str, name: str, count: int) -> None:
    """All in one transaction: there is no batch."""
    client = _client(url)
    dialect = url.replace("postgresql://", "postgresql+psycopg://")
    with sqlalchemy.create_engine(dialect).begin() as connection:
        for _ in range(count):
            client.enqueue_in_transaction(connection, _options(name, "bench"))
    client.destroy()


def enqueue(url: str, seconds: float) -> None:
    one = _enqueue(_client(url, 10), "requeued", "requeued")
    protocol.enqueue_for(seconds, one)
    protocol.enqueue_in_threads(seconds, one)


def work(url: str, polling: float = POLLING) -> None:
    """The queue has no room until `go`, so that all is loaded and connected by then."""
    _launch(url)
    queue = DBOS.retrieve_queue("bench")
    assert queue is not None
    queue.set_polling_interval_sec(polling)
    protocol.ready()
    protocol.started()
    queue.set_worker_concurrency(None)
    threading.Event().wait()


def serve(url: str) -> None:
    work(url, 1.0)


def watch(url: str, name: str, seconds: float) -> None:
    left = f"from {{0}}workflow_status where status in ('ENQUEUED', 'PENDING') and name = '{name}'"
    if url.startswith("sqlite"):
        protocol.watch_sqlite(url, seconds, left.format(""))
    else:
        asyncio.run(protocol.watch_postgres(url, seconds, left.format("dbos.")))


def send(url: str) -> None:
    protocol.send_each(_enqueue(_client(url), "stamp"))


if __name__ == "__main__":
    protocol.main(globals())
