"""Limits: of the tasks with one key no more are admitted than its limit allows, and while there is room none waits."""

from __future__ import annotations

from typing import Any

import pytest

from treadle.kernel.store.ports import Store
from treadle.kernel.store.units import BlockRun, CancelRunTasks, Keep, Redrive, Unit, Verdict
from treadle.model.names import DEFAULT_NAMESPACE
from treadle.model.states import BlockReason, TaskState
from treadle.model.tasks import NewTask
from treadle_conformance.task_steps import (
    OTHER,
    WORK,
    cancel,
    claim,
    claim_one,
    commit_one,
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

KEY = "customer:42"
HANDLER_KEY = "handler:work"
RUN_ID = "0198c3de-7a10-7c3e-b2a4-5d1f0c9e8a77"


async def put_limited(store: Store, count: int, limit: int = 3, **fields: Any) -> list[NewTask]:
    tasks = [new_task(limit_key=KEY, limit=limit, **fields) for _ in range(count)]
    await put(store, *tasks)
    return tasks


async def admitted(store: Store, key: str = KEY) -> list[str]:
    return await store.operators.list_admitted(DEFAULT_NAMESPACE, key, 1_000)


async def limit_of(store: Store, key: str = KEY) -> tuple[int, bool, int, int] | None:
    found = {limit.key: limit for limit in await store.operators.list_limits(DEFAULT_NAMESPACE)}.get(key)
    return found and (found.max_running, found.by_operator, found.admitted, found.waiting)


# --- being admitted ---


async def test_no_more_tasks_of_a_key_can_be_taken_than_its_limit_allows(store):
    tasks = await put_limited(store, 5)
    assert in_order(await claim(store)) == in_order(tasks[:3])
    assert await claim(store) == []
    assert await limit_of(store) == (3, False, 3, 2)
    assert [(await get(store, task.id)).blocked_by for task in tasks] == [0, 0, 0, BlockReason.OVER_LIMIT, BlockReason.OVER_LIMIT]


async def test_tasks_of_other_keys_namespaces_and_without_a_key_are_not_held_back(store):
    await put_limited(store, 2, limit=1)
    free = [
        new_task(limit_key="customer:43", limit=1),
        new_task(WORK._replace(namespace="elsewhere"), limit_key=KEY, limit=1),
        new_task(),
    ]
    await put(store, *free)
    taken = await claim(store) + await claim(store, WORK._replace(namespace="elsewhere"))
    assert {task.id for task in free} < set(in_order(taken))
    assert len(taken) == 4


@pytest.mark.parametrize("ending", [succeed(), fail()])
async def test_an_end_admits_the_next_waiting_task_and_reports_its_queue(store, ending):
    tasks = await put_limited(store, 2, limit=1)
    first = await claim_one(store)
    answer = await commit_one(store, first.claim, ending)
    assert answer.queue_ids == (first.queue_id,)
    assert in_order(await claim(store)) == [tasks[1].id]


async def test_the_next_in_line_is_of_the_best_priority_and_then_the_longest_due(store, clock):
    (first,) = await put_limited(store, 1, limit=1)
    await claim_one(store)
    await put_limited(store, 1, limit=1, priority=1)
    await clock.advance(5)
    (late,) = await put_limited(store, 1, limit=1)
    await clock.advance(5)
    await put_limited(store, 1, limit=1)
    await commit_one(store, (await get(store, first.id)).claim, succeed())
    assert await admitted(store) == [late.id]


async def test_one_commit_that_ends_many_tasks_admits_as_many(store):
    tasks = await put_limited(store, 10)
    taken = await claim(store)
    await store.commit([Unit(task.claim, succeed()) for task in taken])
    assert in_order(await claim(store)) == in_order(tasks[3:6])


async def test_ends_with_and_without_a_key_go_into_one_commit(store):
    plain = [await put_one(store, OTHER) for _ in range(3)]
    tasks = await put_limited(store, 4, limit=2)
    taken = await claim(store, OTHER) + await claim(store)
    lost = await put_one(store, OTHER)
    gone = (await claim_one(store, OTHER)).claim
    await settle(store, seen(await get(store, lost.id)), cancel())
    units = [Unit(task.claim, succeed()) for task in taken]
    answers = await store.commit([*units, Unit(gone, succeed())])
    assert [answer.verdict for answer in answers] == [Verdict.DONE] * 5 + [Verdict.CLAIM_LOST]
    assert in_order(await claim(store)) == in_order(tasks[2:])
    assert all([(await get(store, task.id)).finished for task in plain])
    assert [answer.verdict for answer in await store.commit(units)] == [Verdict.DONE] * 5


async def test_a_unit_that_is_sent_twice_admits_once(store):
    tasks = await put_limited(store, 3, limit=1)
    unit = Unit((await claim_one(store)).claim, succeed())
    for _ in range(2):
        assert (await store.commit([unit]))[0].verdict == Verdict.DONE
    assert await admitted(store) == [tasks[1].id]


async def test_tasks_created_by_a_settle_queue_for_a_slot(store):
    (first,) = await put_limited(store, 1, limit=1)
    taken = await claim_one(store)
    follower = new_task(limit_key=KEY)
    await commit_one(store, taken.claim, Keep(None), follower)
    assert await admitted(store) == [first.id]
    await commit_one(store, taken.claim, succeed())
    assert await admitted(store) == [follower.id]


async def test_a_key_without_a_limit_holds_no_task_back(store):
    await put(store, *[new_task(limit_key=KEY) for _ in range(20)])
    assert len(await claim(store)) == 20
    assert await limit_of(store) is None


# --- giving a place up, and keeping it ---


@pytest.mark.parametrize(
    ("transition", "fields"),
    [
        ("retry", {"delay": 1_000}),
        ("wait", {"delay": 1_000}),
        ("hand_off", {"delay": 1_000, "state": TaskState.AWAITING_EXTERNAL}),
        ("ask", {"delay": 1_000, "state": TaskState.AWAITING_APPROVAL}),
        ("pause", {"blocked_by": BlockReason.TASK_PAUSED}),
    ],
)
async def test_a_sleeping_awaiting_or_paused_task_frees_its_slot(store, transition, fields):
    tasks = await put_limited(store, 2, limit=1)
    taken = await claim_one(store)
    answer = await commit_one(store, taken.claim, requeue(taken, transition, **fields))
    assert answer.queue_ids == (taken.queue_id,)
    assert in_order(await claim(store)) == [tasks[1].id]


async def test_a_woken_task_queues_for_a_slot_again(store, clock):
    tasks = await put_limited(store, 2, limit=1)
    sleeper = await claim_one(store)
    await settle(store, sleeper.claim, requeue(sleeper, delay=1_000))
    running = await claim_one(store)
    await clock.advance(1_000)
    assert (await store.tasks.wake(10)).queue_ids == ()
    assert await claim(store) == []
    await settle(store, running.claim, succeed())
    assert in_order(await claim(store)) == [tasks[0].id]


async def test_a_task_woken_with_a_free_slot_is_ready_and_the_wake_reports_its_queue(store, clock):
    (task,) = await put_limited(store, 1, limit=1, delay=1_000)
    assert await admitted(store) == []
    await clock.advance(1_000)
    woken = await store.tasks.wake(10)
    taken = await claim_one(store)
    assert (taken.id, woken.queue_ids) == (task.id, (taken.queue_id,))


async def test_a_released_task_keeps_its_place_in_line(store):
    await put_limited(store, 2, limit=1)
    taken = await claim_one(store)
    await settle(store, taken.claim, requeue(taken, "release"))
    assert (await claim_one(store)).id == taken.id


async def test_an_expired_lease_keeps_its_slot_until_the_task_is_settled(store, clock):
    await put_limited(store, 3, limit=2)
    crashed, alive = await claim(store, lease_for=1_000)
    await clock.advance(1_000)
    await store.tasks.wake(10)
    assert sorted(await admitted(store)) == sorted([crashed.id, alive.id])
    taken = await claim(store, owner="owner-2")
    assert in_order(taken) == in_order([crashed, alive])
    assert await settle(store, crashed.claim, succeed()) == Verdict.CLAIM_LOST
    assert await claim(store) == []


async def test_canceling_a_running_or_waiting_task_frees_its_slot(store):
    tasks = await put_limited(store, 4, limit=1)
    await claim_one(store)
    for task in tasks[:3]:
        await settle(store, seen(await get(store, task.id)), cancel())
    assert await admitted(store) == [tasks[3].id]


async def test_a_resumed_task_queues_for_a_slot(store):
    tasks = await put_limited(store, 2, limit=1)
    await settle(
        store,
        seen(await get(store, tasks[0].id)),
        requeue(await get(store, tasks[0].id), "pause", blocked_by=BlockReason.TASK_PAUSED),
    )
    assert await admitted(store) == [tasks[1].id]
    paused = await get(store, tasks[0].id)
    await settle(store, seen(paused), requeue(paused, "resume", blocked_by=0))
    assert await admitted(store) == [tasks[1].id]
    assert (await get(store, tasks[0].id)).blocked_by == BlockReason.OVER_LIMIT


async def test_a_redriven_task_queues_for_a_slot(store):
    await put_limited(store, 2, limit=1)
    first = await claim_one(store)
    await settle(store, first.claim, fail())
    answer = await commit_one(store, seen(await get(store, first.id)), Redrive("requeue", "ann"))
    assert answer.queue_ids == ()
    second = await claim_one(store)
    assert (await commit_one(store, second.claim, succeed())).queue_ids == (first.queue_id,)
    assert (await claim_one(store)).id == first.id


async def test_a_paused_run_frees_the_slots_of_its_unstarted_tasks(store):
    running, waiting = await put_limited(store, 2, limit=2, run_id=RUN_ID)
    await claim(store, limit=1)
    others = await put_limited(store, 2, limit=2)
    (answer,) = await store.commit([Unit(rows=(BlockRun(RUN_ID, True),))])
    assert sorted(await admitted(store)) == sorted([running.id, others[0].id])
    assert answer.queue_ids
    await store.commit([Unit(rows=(BlockRun(RUN_ID, False),))])
    assert (await get(store, waiting.id)).blocked_by == BlockReason.OVER_LIMIT
    for task in (running, others[0]):
        await settle(store, seen(await get(store, task.id)), cancel())
    assert sorted(await admitted(store)) == sorted([waiting.id, others[1].id])


async def test_a_lease_that_expires_while_the_run_is_paused_frees_its_slot(store, clock):
    (running,) = await put_limited(store, 1, limit=1, run_id=RUN_ID)
    await claim_one(store, lease_for=1_000)
    (other,) = await put_limited(store, 1, limit=1)
    await store.commit([Unit(rows=(BlockRun(RUN_ID, True),))])
    assert await admitted(store) == [running.id]
    await clock.advance(1_000)
    await store.tasks.wake(10)
    assert await admitted(store) == [other.id]


async def test_a_canceled_run_makes_room(store):
    await put_limited(store, 3, limit=2, run_id=RUN_ID)
    await claim(store, limit=1)
    others = await put_limited(store, 3, limit=2)
    (answer,) = await store.commit([Unit(rows=(CancelRunTasks(RUN_ID, "ann", "{}"),))])
    assert sorted(await admitted(store)) == sorted(in_order(others[:2]))
    assert answer.queue_ids
