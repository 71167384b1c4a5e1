"""Settings of task lists and queues: paused, draining, with a rate, with a cap on ready tasks."""

from __future__ import annotations

import asyncio

import pytest

from treadle.kernel.store.ports import Store
from treadle.kernel.store.units import Redrive, Unit, Verdict
from treadle.model.errors import BacklogFull, ListDraining
from treadle.model.lists import TaskList
from treadle.model.names import DEFAULT_LIST, DEFAULT_NAMESPACE, QueueKey
from treadle_conformance.task_steps import (
    MINUTE,
    OTHER,
    WORK,
    claim,
    claim_one,
    everything,
    fail,
    get,
    in_order,
    new_task,
    put,
    put_one,
    requeue,
    seen,
    settle,
    succeed,
)

SLOW = WORK._replace(task_list="slow")


async def queue_id_of(store: Store, queue: QueueKey = WORK) -> int:
    return (await store.tasks.queue_ids([queue]))[queue]


# --- keeping ---


async def test_the_retention_of_a_list_is_listed_with_its_other_settings(store):
    await store.retention.set_keep(DEFAULT_NAMESPACE, "slow", 60_000, None)
    (said,) = await store.operators.list_lists()
    assert said == TaskList(namespace=DEFAULT_NAMESPACE, task_list="slow", keep_completed_for=60_000)


# --- pausing ---


async def test_a_paused_list_yields_no_claims_and_its_running_work_continues(store):
    await put(store, new_task(), new_task(), new_task(SLOW))
    running = await claim_one(store)
    await store.operators.set_list(DEFAULT_NAMESPACE, DEFAULT_LIST, paused=True)
    assert in_order(await claim(store, WORK, SLOW)) != []
    assert await claim(store, WORK, SLOW) == []
    assert await settle(store, running.claim, succeed()) == Verdict.DONE
    await put_one(store)
    assert await claim(store) == []


async def test_a_resumed_list_continues_and_reports_its_queues(store):
    await put(store, new_task(), new_task(OTHER), new_task(SLOW))
    await store.operators.set_list(DEFAULT_NAMESPACE, DEFAULT_LIST, paused=True)
    queues = await store.operators.set_list(DEFAULT_NAMESPACE, DEFAULT_LIST, paused=False)
    assert set(queues) == {await queue_id_of(store), await queue_id_of(store, OTHER)}
    assert len(await claim(store)) == 1


async def test_new_queues_inherit_the_settings_of_their_list(store):
    await store.operators.set_list(DEFAULT_NAMESPACE, "slow", paused=True)
    await put(store, new_task(SLOW), new_task())
    assert await claim(store, SLOW) == []
    assert len(await claim(store)) == 1


async def test_a_list_of_another_namespace_is_another_list(store):
    await store.operators.set_list("elsewhere", DEFAULT_LIST, paused=True)
    await put_one(store)
    assert len(await claim(store)) == 1


async def test_settings_of_a_list_can_be_read_and_unset_ones_keep_their_values(store):
    await store.operators.set_list(DEFAULT_NAMESPACE, "slow", paused=True)
    await store.operators.set_list(DEFAULT_NAMESPACE, "slow", accepting=False)
    await store.operators.set_list(DEFAULT_NAMESPACE, "slow", no_handler="ignore")
    said = TaskList(namespace=DEFAULT_NAMESPACE, task_list="slow", paused=True, accepting=False, no_handler="ignore")
    assert await store.operators.list_lists() == [said]
    await put_one(store)
    rules = {rule.queue: rule for rule in await store.operators.list_queue_rules()}
    assert set(rules) == {WORK}


async def test_a_pause_of_a_list_applies_to_every_process(database, store):
    second = await database.open_store()
    await put_one(store)
    await second.operators.set_list(DEFAULT_NAMESPACE, DEFAULT_LIST, paused=True)
    assert await claim(store) == []


async def test_queues_created_during_a_pause_and_resume_end_like_their_list(database, store):
    second = await database.open_store()
    queues = [SLOW._replace(name=f"queue{number}") for number in range(30)]

    async def make() -> None:
        for queue in queues:
            await store.tasks.queue_ids([queue])

    async def say() -> None:
        for number in range(15):
            await second.operators.set_list(DEFAULT_NAMESPACE, "slow", paused=number % 2 == 0)

    await asyncio.gather(make(), say())
    assert {rule.paused for rule in await store.operators.list_queue_rules()} == {True}


# --- draining ---


async def test_a_draining_list_refuses_new_work_and_finishes_its_backlog(store):
    await put(store, new_task(), new_task())
    await store.operators.set_list(DEFAULT_NAMESPACE, DEFAULT_LIST, accepting=False)
    before = await everything(store)
    with pytest.raises(ListDraining):
        await put(store, new_task(SLOW), new_task(delay=MINUTE))
    assert await everything(store) == before
    first, second = await claim(store)
    follower = new_task()
    assert await settle(store, first.claim, succeed(), follower) == Verdict.DONE
    assert await settle(store, second.claim, fail()) == Verdict.DONE
    assert await settle(store, seen(await get(store, second.id)), Redrive("requeue", "ann")) == Verdict.DONE
    assert sorted(in_order(await claim(store))) == sorted([follower.id, second.id])
    await store.operators.set_list(DEFAULT_NAMESPACE, DEFAULT_LIST, accepting=True)
    await put_one(store)


async def test_an_enqueue_from_before_the_drain_may_be_resent(store):
    unit = Unit(tasks=(new_task(),))
    await store.commit([unit])
    await store.operators.set_list(DEFAULT_NAMESPACE, DEFAULT_LIST, accepting=False)
    assert (await store.commit([unit]))[0].verdict == Verdict.DONE


# --- caps ---


async def test_a_full_queue_refuses_the_whole_unit(store):
    await store.operators.set_backlog_limit(await queue_id_of(store), 3)
    await put(store, new_task(), new_task())
    before = await everything(store)
    with pytest.raises(BacklogFull) as caught:
        await put(store, new_task(OTHER), new_task(), new_task())
    assert (caught.value.code, caught.value.backlog_limit) == ("backlog_full", 3)
    assert await everything(store) == before
    await put_one(store)
    with pytest.raises(BacklogFull):
        await put_one(store)
    await put_one(store, SLOW)


async def test_only_ready_tasks_fill_a_queue(store):
    await store.operators.set_backlog_limit(await queue_id_of(store), 1)
    await put_one(store, delay=MINUTE)
    await put_one(store)
    await put_one(store, delay=MINUTE)
    taken = await claim_one(store)
    await put_one(store)
    await settle(store, taken.claim, requeue(taken, delay=MINUTE))
    with pytest.raises(BacklogFull):
        await put_one(store)


async def test_tasks_blocked_by_a_limit_count_towards_the_backlog(store):
    await store.operators.set_backlog_limit(await queue_id_of(store), 3)
    await put(store, *[new_task(limit_key="k", limit=1) for _ in range(3)])
    with pytest.raises(BacklogFull):
        await put_one(store)


async def test_a_settle_is_never_refused_for_a_full_queue(store):
    await store.operators.set_backlog_limit(await queue_id_of(store), 1)
    await put_one(store, OTHER)
    taken = await claim_one(store, OTHER)
    await put_one(store)
    assert await settle(store, taken.claim, succeed(), new_task(), new_task()) == Verdict.DONE
    assert len(await claim(store)) == 3


async def test_an_enqueue_from_before_the_queue_was_full_may_be_resent(store):
    await store.operators.set_backlog_limit(await queue_id_of(store), 1)
    unit = Unit(tasks=(new_task(),))
    for _ in range(2):
        assert (await store.commit([unit]))[0].verdict == Verdict.DONE
    twin = new_task(unique_key="u")
    await store.operators.set_backlog_limit(await queue_id_of(store), 2)
    await put(store, twin)
    answer = await put(store, new_task(unique_key="u"))
    assert answer.existing == {"u": twin.id}


async def test_a_removed_backlog_limit_refuses_no_task(store):
    """Two tasks more than the former limit are not refused."""
    await store.operators.set_backlog_limit(await queue_id_of(store), 1)
    await put_one(store)
    await store.operators.set_backlog_limit(await queue_id_of(store), None)
    await put(store, new_task(), new_task())


async def test_concurrent_enqueues_fill_a_queue_exactly(database, store):
    stores = [store, *[await database.open_store() for _ in range(3)]]
    await store.operators.set_backlog_limit(await queue_id_of(store), 25)
    answers = await asyncio.gather(
        *[put(stores[number % 4], new_task(), new_task()) for number in range(40)], return_exceptions=True
    )
    assert sum(not isinstance(answer, BaseException) for answer in answers) == 12
    assert all(isinstance(answer, BacklogFull) for answer in answers if isinstance(answer, BaseException))
    assert len(await claim(store)) == 24


# --- rates ---


async def test_no_more_is_taken_than_a_rate_allows(store, clock):
    await store.operators.set_rate(await queue_id_of(store), 2.0, 3)
    await put(store, *[new_task() for _ in range(20)])
    assert len(await claim(store)) == 3
    assert await claim(store) == []
    await clock.advance(499)
    assert await claim(store) == []
    await clock.advance(1)
    assert len(await claim(store)) == 1
    await clock.advance(60_000)
    assert len(await claim(store)) == 3
    assert await claim(store) == []


async def test_a_claim_that_takes_less_spends_less(store, clock):
    await store.operators.set_rate(await queue_id_of(store), 1.0, 3)
    await put(store, *[new_task() for _ in range(20)])
    assert len(await claim(store, limit=2)) == 2
    assert len(await claim(store)) == 1


async def test_a_queue_without_tokens_does_not_block_others(store):
    await store.operators.set_rate(await queue_id_of(store), 1.0, 1)
    await put(store, *[new_task(priority=-1) for _ in range(3)], new_task(OTHER))
    assert [task.name for task in await claim(store, WORK, OTHER)] == ["work"]
    assert [task.name for task in await claim(store, WORK, OTHER)] == ["other"]
    assert await claim(store, WORK, OTHER) == []


async def test_the_store_returns_the_time_of_the_next_token(store, clock):
    queue_id, other_id = await queue_id_of(store), await queue_id_of(store, OTHER)
    await put(store, new_task(), new_task(), new_task(OTHER))
    assert await store.tasks.next_token_for([queue_id, other_id]) is None
    await store.operators.set_rate(queue_id, 4.0, 1)
    assert await store.tasks.next_token_for([queue_id, other_id]) == 0
    await claim(store)
    assert await store.tasks.next_token_for([queue_id, other_id]) == 250
    assert await store.tasks.next_token_for([other_id]) is None
    await clock.advance(100)
    assert await store.tasks.next_token_for([queue_id]) == 150
    await clock.advance(150)
    assert len(await claim(store)) == 1
    assert await store.tasks.next_token_for([queue_id]) is None  # nothing is left to take


async def test_a_paused_queue_waits_for_no_token(store):
    await store.operators.set_rate(await queue_id_of(store), 1.0, 1)
    await put(store, new_task(), new_task())
    await claim(store)
    await store.operators.set_list(DEFAULT_NAMESPACE, DEFAULT_LIST, paused=True)
    assert await store.tasks.next_token_for([await queue_id_of(store)]) is None


async def test_a_removed_rate_blocks_no_task(store):
    await store.operators.set_rate(await queue_id_of(store), 1.0, 1)
    await put(store, *[new_task() for _ in range(5)])
    await claim(store)
    await store.operators.set_rate(await queue_id_of(store), None, None)
    assert len(await claim(store)) == 4


async def test_settings_of_a_queue_can_be_read(store, clock):
    queue_id = await queue_id_of(store)
    await store.operators.set_rate(queue_id, 0.5, 2)
    await store.operators.set_backlog_limit(queue_id, 9)
    await store.operators.set_limit(DEFAULT_NAMESPACE, "handler:work", 4)
    (rule,) = await store.operators.list_queue_rules()
    assert (rule.queue_id, rule.queue, rule.rate, rule.burst) == (queue_id, WORK, 0.5, 2)
    assert (rule.backlog_limit, rule.limit_key, rule.paused, rule.accepting) == (9, "handler:work", False, True)
    assert (rule.tokens_left(clock.now()), rule.next_token_for(clock.now())) == (2, 0)


async def test_concurrent_claimers_together_take_no_more_than_the_rate_allows(database, store):
    stores = [store, *[await database.open_store() for _ in range(3)]]
    await store.operators.set_rate(await queue_id_of(store), 0.001, 10)
    for other in stores:
        await other.tasks.list_queues()
    await put(store, *[new_task() for _ in range(100)])
    taken = await asyncio.gather(*[claim(stores[number % 4], owner=f"o{number}", limit=3) for number in range(16)])
    assert sum(map(len, taken)) == 10
