"""Signals: hints that something became ready. Every wait here ends by the signal, or the test fails by its timeout."""

from __future__ import annotations

import asyncio
import threading

from treadle.kernel.store.units import Unit
from treadle_conformance.task_steps import OTHER, WORK, new_task


class Heard:
    """Collects the signals of a subscriber, on its event loop."""

    def __init__(self) -> None:
        self.queues: list[tuple[int, ...]] = []
        self._something = asyncio.Event()
        self._thread = threading.get_ident()

    def __call__(self, queue_ids: tuple[int, ...]) -> None:
        assert threading.get_ident() == self._thread
        self.queues.append(queue_ids)
        self._something.set()

    async def until(self, *queue_ids: int) -> None:
        """Return once a signal for these queues, or for all, has been heard."""
        while not any(not heard or set(queue_ids) <= set(heard) for heard in self.queues):
            self._something.clear()
            await self._something.wait()


async def test_a_subscriber_receives_the_notified_queues(store):
    queue_id = (await store.tasks.queue_ids([WORK]))[WORK]
    heard = Heard()
    stop = await store.subscribe(heard)
    await store.notify([queue_id])
    await heard.until(queue_id)
    stop()


async def test_every_subscriber_is_notified(store):
    queue_ids = tuple((await store.tasks.queue_ids([WORK, OTHER])).values())
    listeners = [Heard(), Heard()]
    stops = [await store.subscribe(heard) for heard in listeners]
    await store.notify(queue_ids)
    for heard in listeners:
        await heard.until(*queue_ids)
    for stop in stops:
        stop()


async def test_a_signaled_or_notified_commit_reaches_all_processes(database, store):
    listeners = [Heard(), Heard()]
    stops = [await each.subscribe(heard) for each, heard in zip((store, await database.open_store()), listeners, strict=True)]
    await store.tasks.queue_ids([WORK])
    for heard in listeners:
        heard.queues.clear()
    (answer,) = await store.commit([Unit(tasks=(new_task(),))])
    if not answer.is_signaled:
        await store.notify(answer.queue_ids)
    for heard in listeners:
        await heard.until(*answer.queue_ids)
    assert len(answer.queue_ids) == 1
    for stop in stops:
        stop()


async def test_a_subscriber_receives_the_queues_notified_by_another_process(database, store):
    queue_id = (await store.tasks.queue_ids([WORK]))[WORK]
    other = await database.open_store()
    heard = Heard()
    stop = await store.subscribe(heard)
    heard.queues.clear()
    await other.notify([queue_id])
    await heard.until(queue_id)
    stop()


async def test_two_processes_receive_signals_of_each_other(database, store):
    queue_id = (await store.tasks.queue_ids([WORK]))[WORK]
    stores = [store, await database.open_store()]
    listeners = [Heard(), Heard()]
    stops = [await each.subscribe(heard) for each, heard in zip(stores, listeners, strict=True)]
    for sender, heard in zip(stores, reversed(listeners), strict=True):
        heard.queues.clear()
        await sender.notify([queue_id])
        await heard.until(queue_id)
    for stop in stops:
        stop()


async def test_an_unsubscribed_listener_receives_no_signals(store):
    queue_id = (await store.tasks.queue_ids([WORK]))[WORK]
    gone, there = Heard(), Heard()
    stop = await store.subscribe(gone)
    stop_there = await store.subscribe(there)
    stop()
    gone.queues.clear()
    await store.notify([queue_id])
    await there.until(queue_id)
    assert gone.queues == []
    stop_there()


async def test_stopping_twice_is_harmless(store):
    """The second stop raises nothing."""
    stop = await store.subscribe(Heard())
    stop()
    stop()


async def test_notifying_without_a_listener_is_allowed(store):
    """No listener is no error."""
    await store.notify((await store.tasks.queue_ids([WORK])).values())
    await store.notify([])
