"""Queues are made where they are missing, are never removed, and keep their ids."""

from __future__ import annotations

import asyncio

from treadle_conformance.task_steps import OTHER, WORK, put_and_claim, settle, succeed


async def test_queues_are_made_where_they_are_missing(store):
    assert await store.tasks.list_queues() == {}
    found = await store.tasks.queue_ids([WORK, OTHER])
    assert set(found) == {WORK, OTHER}
    assert await store.tasks.list_queues() == {queue_id: queue for queue, queue_id in found.items()}


async def test_asking_for_a_queue_twice_in_one_call_makes_one(store):
    found = await store.tasks.queue_ids([WORK, WORK])
    assert list(found) == [WORK]
    assert len(await store.tasks.list_queues()) == 1


async def test_the_id_of_a_queue_never_changes(store):
    first = await store.tasks.queue_ids([WORK])
    second = await store.tasks.queue_ids([OTHER, WORK])
    assert second[WORK] == first[WORK] != second[OTHER]


async def test_no_queues_have_no_ids(store):
    assert await store.tasks.queue_ids([]) == {}


async def test_a_new_task_makes_its_queue(store):
    taken = await put_and_claim(store)
    assert await store.tasks.list_queues() == {taken.queue_id: WORK}


async def test_a_queue_outlives_its_tasks(store):
    taken = await put_and_claim(store)
    await settle(store, taken.claim, succeed())
    assert await store.tasks.list_queues() == {taken.queue_id: WORK}


async def test_concurrent_callers_agree_on_the_ids(store):
    queues = [WORK._replace(name=f"queue{number}") for number in range(10)]
    orders = [queues, queues[::-1], queues[5:] + queues[:5], queues[::2] + queues[1::2]]
    answers = await asyncio.gather(*[store.tasks.queue_ids(order) for order in orders])
    assert all(answer == answers[0] for answer in answers)
    assert len(await store.tasks.list_queues()) == 10


async def test_another_store_on_the_database_sees_the_same_queues(database, store):
    second = await database.open_store()
    assert await second.tasks.queue_ids([WORK]) == await store.tasks.queue_ids([WORK])
