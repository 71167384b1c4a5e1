"""Claims: their order, their exclusiveness, and the values that they write."""

from __future__ import annotations

import asyncio

from treadle.model.names import DEFAULT_LIST, DEFAULT_NAMESPACE, QueueKey
from treadle.model.states import BlockReason
from treadle_conformance.task_steps import (
    MINUTE,
    OTHER,
    WORK,
    claim,
    claim_one,
    get,
    in_order,
    new_task,
    put,
    put_and_claim,
    put_one,
    requeue,
    seen,
    settle,
    succeed,
)


async def test_a_claim_takes_a_ready_task_and_raises_its_claim_version_by_one(store):
    task = await put_one(store, payload='{"a":1}')
    taken = await claim_one(store, owner="me")
    assert (taken.id, taken.owner_id, taken.claim_version, taken.payload) == (task.id, "me", 1, '{"a":1}')


async def test_each_further_claim_raises_the_claim_version_again(store):
    first = await put_and_claim(store)
    await settle(store, first.claim, requeue(first))
    second = await claim_one(store, owner="owner-2")
    assert (second.id, second.claim_version) == (first.id, first.claim_version + 1)


async def test_a_claim_returns_the_stored_task(store):
    taken = await put_and_claim(store, unique_key="k", run_id="0198c3de-7a10-7c3e-b2a4-5d1f0c9e8a77", deadline_for=MINUTE)
    assert taken == await get(store, taken.id)


async def test_a_claim_writes_the_times_of_the_claim_and_the_end_of_its_lease(store, clock):
    await put_one(store)
    await clock.advance(500)
    taken = await claim_one(store, lease_for=30_000)
    assert (taken.claimed_at, taken.heartbeat_at, taken.progress_at) == (clock.now(),) * 3
    assert taken.wake_at == clock.now() + 30_000


async def test_a_claim_leaves_no_transition(store):
    taken = await put_and_claim(store)
    assert taken.version == 0
    assert await store.log.list_transitions(taken.id) == []


async def test_a_claim_takes_no_more_than_its_limit(store):
    await put(store, *[new_task() for _ in range(5)])
    assert len(await claim(store, limit=3)) == 3
    assert len(await claim(store, limit=3)) == 2
    assert await claim(store, limit=3) == []


async def test_a_claimed_task_is_not_taken_again(store):
    await put_and_claim(store)
    assert await claim(store, owner="owner-2") == []
    assert await claim(store, owner="owner-1") == []


async def test_a_task_with_a_wake_at_is_not_taken_until_it_was_woken(store, clock):
    await put_one(store, delay=10_000)
    assert await claim(store) == []
    await clock.advance(10_000)
    assert await claim(store) == []
    await store.tasks.wake(100)
    assert len(await claim(store)) == 1


async def test_a_blocked_task_is_not_claimed_until_unblocked(store):
    for bit in (BlockReason.OVER_LIMIT, BlockReason.LIST_PAUSED, BlockReason.TASK_PAUSED):
        task = await put_one(store)
        before = await get(store, task.id)
        await settle(store, seen(before), requeue(before, "pause", blocked_by=bit))
        assert await claim(store) == []
        held = await get(store, task.id)
        await settle(store, seen(held), requeue(held, "resume", blocked_by=0))
        assert in_order(await claim(store)) == [task.id]


async def test_a_task_may_be_inserted_blocked(store):
    task = await put_one(store, blocked_by=BlockReason.TASK_PAUSED)
    assert (await get(store, task.id)).blocked_by == BlockReason.TASK_PAUSED
    assert await claim(store) == []


async def test_a_claim_takes_only_from_the_queues_that_it_names(store):
    await put_one(store, OTHER)
    assert await claim(store, WORK) == []
    assert len(await claim(store, OTHER)) == 1


async def test_queues_that_differ_in_one_part_only_are_different_queues(store):
    queues = [WORK] + [WORK._replace(**{part: "else"}) for part in QueueKey._fields]
    tasks = {queue: await put_one(store, queue) for queue in queues}
    for queue in queues:
        assert in_order(await claim(store, queue)) == [tasks[queue].id]


async def test_a_claim_with_scopes_takes_only_tasks_in_these_scopes(store):
    mine = [await put_one(store, scope=scope, priority=priority) for scope, priority in (("a", 2), ("b", 1), ("a", 1))]
    others = [await put_one(store, scope="c", priority=-1), await put_one(store), await put_one(store, OTHER, scope="c")]
    queue_ids = list((await store.tasks.queue_ids([WORK, OTHER])).values())
    claimed = []
    while tasks := await store.tasks.claim(queue_ids, "owner-1", MINUTE, 1, ["a", "b"]):
        claimed += tasks
    assert [(task.id, task.claim_version, task.scope) for task in claimed] == [
        (task.id, 1, task.scope) for task in (mine[1], mine[2], mine[0])
    ]
    assert await store.tasks.claim(queue_ids, "owner-1", MINUTE, 10, []) == []
    rest = [task.id for _ in range(2) for task in await store.tasks.claim(queue_ids, "owner-1", MINUTE, 10)]
    rest += [task.id for task in await store.tasks.claim(queue_ids, "owner-1", MINUTE, 10)]
    assert sorted(rest) == sorted(task.id for task in others)


async def test_a_claim_with_scopes_obeys_the_rate_and_the_pause_of_the_queue(store):
    for _ in range(5):
        await put_one(store, scope="a")
    (queue_id,) = (await store.tasks.queue_ids([WORK])).values()
    await store.operators.set_rate(queue_id, 1.0, 2)
    await store.tasks.list_queues()
    assert len(await store.tasks.claim([queue_id], "owner-1", MINUTE, 10, ["a"])) == 2
    assert await store.tasks.claim([queue_id], "owner-1", MINUTE, 10, ["a"]) == []
    await store.operators.set_rate(queue_id, None, None)
    await store.operators.set_list(DEFAULT_NAMESPACE, DEFAULT_LIST, paused=True)
    assert await store.tasks.claim([queue_id], "owner-1", MINUTE, 10, ["a"]) == []
    await store.operators.set_list(DEFAULT_NAMESPACE, DEFAULT_LIST, paused=False)
    assert len(await store.tasks.claim([queue_id], "owner-1", MINUTE, 10, ["a"])) == 3


async def test_a_claim_from_no_queues_returns_no_task(store):
    await put_one(store)
    assert await store.tasks.claim([], "owner-1", MINUTE, 10) == []


async def test_the_smallest_priority_is_taken_first(store):
    tasks = {priority: await put_one(store, priority=priority) for priority in (5, -3, 0)}
    assert [(await claim_one(store)).id for _ in range(3)] == [tasks[-3].id, tasks[0].id, tasks[5].id]


async def test_within_a_priority_the_oldest_due_is_taken_first(store, clock):
    slept = await put_one(store, delay=1)
    await clock.advance(5)
    fresh = await put_one(store)
    await clock.advance(1)
    await store.tasks.wake(10)
    assert [(await claim_one(store)).id for _ in range(2)] == [slept.id, fresh.id]


async def test_tasks_of_one_claim_are_in_the_order_of_the_queue(store, clock):
    expected = []
    for priority in (1, 0):
        for _ in range(3):
            expected.append((priority, (await put_one(store, priority=priority)).id))
            await clock.advance(1)
    order = []
    while taken := await claim(store, limit=2):
        order += in_order(taken)
    assert order == [task_id for _, task_id in sorted(expected)]


async def test_the_best_priority_among_the_queues_is_taken(store):
    await put_one(store, WORK, priority=1)
    best = await put_one(store, OTHER, priority=0)
    assert (await claim_one(store, WORK, OTHER)).id == best.id
    assert (await claim_one(store, OTHER, WORK)).priority == 1


async def test_one_call_claims_from_one_queue_and_the_next_from_the_others(store):
    await put(store, *[new_task(queue) for queue in (WORK, OTHER) for _ in range(3)])
    first = await claim(store, WORK, OTHER)
    second = await claim(store, WORK, OTHER)
    assert len({task.queue for task in first}) == len({task.queue for task in second}) == 1
    assert {task.queue for task in first + second} == {WORK, OTHER}
    assert len(first + second) == 6


async def test_an_empty_claim_result_means_that_no_task_was_ready(store):
    queues = [WORK._replace(name=f"queue{number}") for number in range(20)]
    await put(store, *[new_task(queue) for queue in queues])
    taken = [await claim_one(store, *queues) for _ in queues]
    assert {task.queue for task in taken} == set(queues)
    assert await claim(store, *queues) == []


async def test_no_two_callers_receive_the_same_claim(store):
    tasks = [new_task(priority=number % 3) for number in range(200)]
    await put(store, *tasks)
    await store.tasks.queue_ids([WORK])

    async def drain(owner):
        mine = []
        # Nothing may also mean that others were taking it at that moment: so look again and again.
        for _ in range(1_000):
            if len(all_taken) == len(tasks):
                break
            taken = await claim(store, owner=owner, limit=7)
            assert {task.owner_id for task in taken} <= {owner}
            mine += in_order(taken)
            all_taken.update(in_order(taken))
            await asyncio.sleep(0)
        return mine

    all_taken = set()
    shares = await asyncio.gather(*[drain(f"owner-{number}") for number in range(8)])
    assert sorted(task_id for share in shares for task_id in share) == sorted(in_order(tasks))


async def test_no_two_callers_on_two_connections_receive_the_same_claim(database, store):
    second = await database.open_store()
    tasks = [new_task() for _ in range(60)]
    await put(store, *tasks)

    async def drain(through, owner):
        mine = []
        for _ in range(1_000):
            if len(all_taken) == len(tasks):
                break
            taken = await claim(through, owner=owner, limit=5)
            mine += in_order(taken)
            all_taken.update(in_order(taken))
            await asyncio.sleep(0)
        return mine

    all_taken = set()
    shares = await asyncio.gather(*[drain((store, second)[number % 2], f"owner-{number}") for number in range(4)])
    assert sorted(task_id for share in shares for task_id in share) == sorted(in_order(tasks))


async def test_a_finished_task_is_not_taken(store):
    taken = await put_and_claim(store)
    await settle(store, taken.claim, succeed())
    assert await claim(store) == []
