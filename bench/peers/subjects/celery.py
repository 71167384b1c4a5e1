"""Celery on Redis: no results kept, and what its documentation says for many short tasks: a high prefetch multiplier.

A worker process is a worker with the solo pool: for tasks that do nothing, a pool of processes behind the worker only adds a hop.
Gossip, mingle and heartbeats are off, as they are between workers. A message is acknowledged before the task starts (its
default): it is lost when the worker dies.
"""

from __future__ import annotations

from celery import Celery, signals
from redis import Redis

from bench.peers.subjects import protocol


def _app(url: str) -> Celery:
    app = Celery("bench", broker=url)
    app.conf.update(
        task_ignore_result=True,
        task_default_queue="bench",
        task_routes={"requeued": {"queue": "requeued"}},
        worker_prefetch_multiplier=128,
        worker_redirect_stdouts=False,
        worker_enable_remote_control=False,
        worker_send_task_events=False,
        broker_connection_retry_on_startup=True,
    )

    @app.task(name="noop")
    def noop() -> None:
        return None

    @app.task(name="stamp")
    def stamp() -> None:
        protocol.say_at()

    return app


def prepare(url: str) -> None:
    Redis.from_url(url).flushall()


def fill(url: str, name: str, count: int) -> None:
    app = _app(url)
    with app.producer_pool.acquire(block=True) as producer:
        for _ in range(count):
            app.send_task(name, producer=producer)


def enqueue(url: str, seconds: float) -> None:
    app = _app(url)
    protocol.enqueue_for(seconds, lambda: app.send_task("requeued"))
    protocol.enqueue_in_threads(seconds, lambda: app.send_task("requeued"))


def work(url: str) -> None:
    """It says that it starts when its consumer is ready: everything before that is loading and connecting."""
    app = _app(url)
    app.loader.import_default_modules()
    protocol.ready()
    signals.worker_ready.connect(lambda **_: protocol.started(), weak=False)
    app.worker_main(
        [
            "worker",
            "--pool=solo",
            "--queues=bench",
            "--without-gossip",
            "--without-mingle",
            "--without-heartbeat",
            "--loglevel=ERROR",
        ]
    )


serve = work


def watch(url: str, name: str, seconds: float) -> None:
    redis = Redis.from_url(url)

    def left() -> int:
        waiting, taken = redis.pipeline().llen("bench").hlen("unacked").execute()
        return int(waiting + taken)

    protocol.watch_until_empty(seconds, lambda: left() > 0, left)


def send(url: str) -> None:
    app = _app(url)
    protocol.send_each(lambda: app.send_task("stamp"))


if __name__ == "__main__":
    protocol.main(globals())
