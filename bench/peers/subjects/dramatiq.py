"""Dramatiq on Redis: its worker with eight threads (its default), without the middleware for results.

A message is acknowledged after the actor has run, and removed then.
"""

from __future__ import annotations

import logging
import threading
from typing import Any

import dramatiq
from dramatiq.brokers.redis import RedisBroker

from bench.peers.subjects import protocol


def _broker(url: str) -> tuple[RedisBroker, dict[str, Any]]:
    """The broker and its actors."""
    logging.disable(logging.WARNING)
    broker = RedisBroker(url=url)
    dramatiq.set_broker(broker)

    @dramatiq.actor(queue_name="bench", actor_name="noop")
    def noop() -> None:
        return None

    @dramatiq.actor(queue_name="bench", actor_name="stamp")
    def stamp() -> None:
        protocol.say_at()

    @dramatiq.actor(queue_name="requeued", actor_name="requeued")
    def requeued() -> None:
        return None

    return broker, {"noop": noop, "stamp": stamp, "requeued": requeued}


def prepare(url: str) -> None:
    broker, _ = _broker(url)
    broker.client.flushall()


def fill(url: str, name: str, count: int) -> None:
    _, actors = _broker(url)
    for _ in range(count):
        actors[name].send()


def enqueue(url: str, seconds: float) -> None:
    _, actors = _broker(url)
    protocol.enqueue_for(seconds, actors["requeued"].send)
    protocol.enqueue_in_threads(seconds, actors["requeued"].send)


def work(url: str) -> None:
    broker, _ = _broker(url)
    worker = dramatiq.Worker(broker, queues={"bench"})
    broker.client.ping()
    protocol.ready()
    protocol.started()
    worker.start()
    threading.Event().wait()


serve = work


def watch(url: str, name: str, seconds: float) -> None:
    """A message is in this hash until it is acknowledged."""
    broker, _ = _broker(url)

    def left() -> int:
        return int(broker.client.hlen("dramatiq:bench.msgs"))

    protocol.watch_until_empty(seconds, lambda: left() > 0, left)


def send(url: str) -> None:
    _, actors = _broker(url)
    protocol.send_each(actors["stamp"].send)


if __name__ == "__main__":
    protocol.main(globals())
