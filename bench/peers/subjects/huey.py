"""Huey on SQLite: `SqliteHuey` with fsync on and no results kept; its consumer with worker threads.

Write-ahead log is its default. THREADS did best of 1, 2, 4, 8 and 16, though 4 came close in some rounds: the file has one lock.
When nothing is there a worker looks every 0.1 s, and less often up to every 10 s (its default); it is woken by nobody. A task is
deleted when it is taken: it is lost when the worker dies.
"""

from __future__ import annotations

from typing import Any

from huey import SqliteHuey

from bench.peers.subjects import protocol

THREADS = 8


def _huey(url: str, name: str = "bench") -> tuple[SqliteHuey, dict[str, Any]]:
    """An instance and its tasks."""
    huey = SqliteHuey(name, filename=url.removeprefix("sqlite:///"), fsync=True, results=False, timeout=30)

    @huey.task(name="noop")
    def noop() -> None:
        return None

    @huey.task(name="stamp")
    def stamp() -> None:
        protocol.say_at()

    return huey, {"noop": noop, "stamp": stamp}


def prepare(url: str) -> None:
    _huey(url)


def fill(url: str, name: str, count: int) -> None:
    """One transaction: there is no batch, so its own connection is used for one."""
    huey, tasks = _huey(url)
    data = [huey.serialize_task(tasks[name].s()) for _ in range(count)]
    with huey.storage.db(commit=True) as cursor:
        cursor.executemany(
            "insert into task (queue, data, priority) values (?, ?, 0)", ((huey.storage.name, each) for each in data)
        )


def enqueue(url: str, seconds: float) -> None:
    _, tasks = _huey(url, "requeued")
    protocol.enqueue_for(seconds, tasks["noop"])
    protocol.enqueue_in_threads(seconds, tasks["noop"])


def work(url: str) -> None:
    huey, _ = _huey(url)
    consumer = huey.create_consumer(workers=THREADS, periodic=False)
    protocol.ready()
    protocol.started()
    consumer.run()


serve = work


def watch(url: str, name: str, seconds: float) -> None:
    protocol.watch_sqlite(url, seconds, "from task where queue = 'bench'")


def send(url: str) -> None:
    _, tasks = _huey(url)
    protocol.send_each(tasks["stamp"])


if __name__ == "__main__":
    protocol.main(globals())
