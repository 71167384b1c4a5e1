"""Idempotency keys: a key identifies one task until the key expires, even if the task ends before."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from treadle.kernel.store.retention import DAY_FOR, Retention
from treadle.kernel.store.units import PutBlob, Unit, Verdict
from treadle.model.names import QueueKey
from treadle.model.tasks import Claim, NewTask
from treadle_conformance.task_steps import (
    OTHER,
    cancel,
    claim,
    claim_one,
    fail,
    get,
    new_task,
    put,
    put_and_claim,
    put_one,
    seen,
    settle,
    succeed,
)


def keyed(key: str = "k", **fields: Any) -> NewTask:
    return new_task(idempotency_key=key, idempotency_for=7 * DAY_FOR, **fields)


async def test_a_second_task_with_the_key_is_not_stored_and_names_the_first(store):
    first, second = keyed(), keyed(queue=OTHER)
    assert (await put(store, first)).same == {}
    answer = await put(store, second)
    assert (answer.verdict, answer.same, answer.queue_ids) == (Verdict.DONE, {second.id: first.id}, ())
    assert await store.tasks.find(second.id) is None
    assert [task.id for task in await claim(store)] == [first.id]


async def test_the_key_identifies_a_finished_task(store):
    first = keyed()
    await put(store, first)
    await settle(store, (await claim_one(store)).claim, succeed())
    second = keyed()
    assert (await put(store, second)).same == {second.id: first.id}


async def test_the_key_identifies_a_pruned_task_until_it_expires(store, clock):
    first = keyed()
    await put(store, first)
    await settle(store, seen(await get(store, first.id)), cancel())
    await clock.advance(DAY_FOR)
    assert (await Retention(store).prune(older_than=60)).trees == 1
    second = keyed()
    assert (await put(store, second)).same == {second.id: first.id}
    await clock.advance(6 * DAY_FOR - 1)
    assert (await put(store, keyed())).same != {}
    await clock.advance(1)
    third = keyed()
    assert (await put(store, third)).same == {}
    assert (await get(store, third.id)).state == "pending"


async def test_keys_past_their_time_are_pruned_and_others_stay(store, clock):
    await put(store, keyed("old"))
    await clock.advance(3 * DAY_FOR)
    new = keyed("new")
    await put(store, new)
    await clock.advance(4 * DAY_FOR)
    assert (await Retention(store).prune()).dedupe_keys == 1
    again = keyed("new")
    assert (await put(store, again)).same == {again.id: new.id}


async def test_keys_are_apart_by_namespace(store):
    first, second = keyed(), keyed(queue=QueueKey("elsewhere", "handler", "default", "work"))
    await put(store, first)
    assert (await put(store, second)).same == {}


async def test_the_first_of_two_tasks_with_one_key_in_one_call_is_stored(store):
    first, second, third, other = keyed(), keyed(), keyed(), keyed("other")
    answers = await store.commit([Unit(tasks=(first, second, other)), Unit(tasks=(third,))])
    assert [answer.same for answer in answers] == [{second.id: first.id}, {third.id: first.id}]
    assert {task.id for task in await claim(store)} == {first.id, other.id}


async def test_resending_a_unit_is_done_and_names_no_task(store):
    unit = Unit(tasks=(keyed(),))
    for _ in range(2):
        (answer,) = await store.commit([unit])
        assert (answer.verdict, answer.same) == (Verdict.DONE, {})
    assert len(await claim(store)) == 1


async def test_a_key_is_free_again_when_its_unit_was_refused(store):
    follow = keyed()
    assert await settle(store, Claim(new_task().id, 1, "nobody"), succeed(), follow) == Verdict.CLAIM_LOST
    later = keyed()
    assert (await put(store, later)).same == {}
    assert (await get(store, later.id)).state == "pending"


async def test_a_settle_may_insert_a_task_with_a_key(store):
    taken = await put_and_claim(store)
    follow, again = keyed(), keyed()
    assert await settle(store, taken.claim, succeed(), follow) == Verdict.DONE
    other = await claim_one(store)
    assert other.id == follow.id
    assert await settle(store, other.claim, fail(), again) == Verdict.DONE
    assert await store.tasks.find(again.id) is None


async def test_the_idempotency_key_identifies_the_live_task_with_the_unique_key(store):
    live = await put_one(store, unique_key="u")
    refused, later = keyed(unique_key="u"), keyed()
    answer = await put(store, refused)
    assert (answer.existing, answer.same) == ({"u": live.id}, {})
    assert (await put(store, later)).same == {later.id: live.id}


async def test_a_used_key_names_its_task_for_all_tasks_of_the_call(store):
    live = await put_one(store, unique_key="u")
    first, second, third = keyed(unique_key="u"), keyed(unique_key="u"), keyed()
    answers = await store.commit([Unit(tasks=(first,)), Unit(tasks=(second, third))])
    assert (answers[0].existing, answers[0].same) == ({"u": live.id}, {})
    assert answers[1].same == {second.id: live.id, third.id: live.id}
    assert [task.id for task in await claim(store)] == [live.id]


@pytest.mark.parametrize("keys", [{"idempotency_key": "k"}, {"unique_key": "k"}], ids=["idempotency", "unique"])
async def test_the_big_values_of_a_task_that_is_not_stored_are_not_kept(database, store, keys):
    for number, kept in ((1, True), (2, False)):
        task = new_task(**keys)
        await store.commit([Unit(tasks=(task,), rows=(PutBlob(f"d{number}", '"big"', task.id),))])
        assert bool(await store.runs.find_blobs([f"d{number}"])) is kept
    assert len(database.rows("blob_uses")) == 1


async def test_concurrent_enqueues_with_one_key_store_one_task(database, store):
    others = [await database.open_store() for _ in range(3)]
    tasks = [keyed() for _ in range(24)]
    answers = await asyncio.gather(*[put([store, *others][number % 4], task) for number, task in enumerate(tasks)])
    stored = [task.id for task, answer in zip(tasks, answers, strict=True) if not answer.same]
    assert len(stored) == 1
    assert {named for answer in answers for named in answer.same.values()} == set(stored)
    assert [task.id for task in await claim(store)] == stored
