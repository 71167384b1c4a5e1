"""Wake-ups: sleeping tasks become ready, and so do tasks with an expired lease."""

from __future__ import annotations

import asyncio

import pytest

from treadle.kernel.store.queries import Woken
from treadle.kernel.store.units import Keep, Verdict
from treadle.model.states import BlockReason, TaskState
from treadle_conformance.task_steps import (
    MINUTE,
    OTHER,
    WORK,
    claim,
    claim_one,
    everything,
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
    transitions_of,
)


async def test_an_empty_store_has_no_wake_time(store):
    assert await store.tasks.wake(100) == Woken(0, 0, (), None)


async def test_a_delayed_task_is_ready_at_its_due_time_and_not_before(store, clock):
    task = await put_one(store, delay=10_000)
    await clock.advance(9_999)
    assert await store.tasks.wake(100) == Woken(0, 0, (), 1)
    assert await claim(store) == []
    await clock.advance(1)
    woken = await store.tasks.wake(100)
    assert (woken.count, woken.expired, woken.next_for) == (1, 0, None)
    assert in_order(await claim(store)) == [task.id]


async def test_a_requeued_task_is_ready_when_its_wait_is_over(store, clock):
    taken = await put_and_claim(store)
    await settle(store, taken.claim, requeue(taken, delay=2_000))
    await clock.advance(1_999)
    assert (await store.tasks.wake(100)).count == 0
    await clock.advance(1)
    assert (await store.tasks.wake(100)).count == 1
    assert (await claim_one(store)).id == taken.id


async def test_waking_leaves_no_transition_and_changes_no_counter(store, clock):
    task = await put_one(store, delay=1)
    await clock.advance(1)
    await store.tasks.wake(100)
    woken = await get(store, task.id)
    assert (woken.attempt, woken.takeovers, woken.version, woken.wake_at) == (1, 0, 0, None)
    assert await store.log.list_transitions(task.id) == []


async def test_an_expired_lease_is_due_again(store, clock):
    first = await put_and_claim(store, lease_for=30_000)
    await clock.advance(30_000)
    woken = await store.tasks.wake(100)
    assert (woken.count, woken.expired) == (1, 1)
    second = await claim_one(store, owner="owner-2")
    assert (second.id, second.claim_version) == (first.id, first.claim_version + 1)


async def test_a_lease_is_kept_until_its_last_millisecond(store, clock):
    await put_and_claim(store, lease_for=30_000)
    await clock.advance(29_999)
    assert await store.tasks.wake(100) == Woken(0, 0, (), 1)
    assert await claim(store, owner="owner-2") == []


async def test_an_expired_lease_counts_a_takeover_and_an_attempt(store, clock):
    for number in (1, 2, 3):
        taken = await (put_and_claim(store) if number == 1 else claim_one(store))
        await clock.advance(MINUTE)
        await store.tasks.wake(100)
        after = await get(store, taken.id)
        assert (after.takeovers, after.attempt, after.failures) == (number, number + 1, 0)


async def test_an_expired_lease_leaves_the_claim_version_and_no_owner(store, clock):
    taken = await put_and_claim(store)
    await clock.advance(MINUTE)
    await store.tasks.wake(100)
    after = await get(store, taken.id)
    assert (after.claim_version, after.owner_id, after.wake_at, after.state) == (1, None, None, TaskState.PENDING)


@pytest.mark.parametrize(("state", "transition"), [("awaiting_external", "hand_off"), ("awaiting_approval", "ask")])
async def test_a_lease_that_ran_out_on_a_poll_counts_a_takeover_but_no_attempt(store, clock, state, transition):
    taken = await put_and_claim(store)
    await settle(store, taken.claim, requeue(taken, transition, state=state))
    polled = await claim_one(store)
    assert polled.state == state
    await clock.advance(MINUTE)
    assert (await store.tasks.wake(100)).expired == 1
    after = await get(store, taken.id)
    assert (after.attempt, after.takeovers, after.state) == (polled.attempt, 1, state)


async def test_an_expired_lease_leaves_a_transition_in_the_log(store, clock):
    taken = await put_and_claim(store, run_id="0198c3de-7a10-7c3e-b2a4-5d1f0c9e8a77", trace_id="t-1")
    await clock.advance(MINUTE)
    await store.tasks.wake(100)
    (transition,) = await store.log.list_transitions(taken.id)
    assert (transition.entity, transition.entity_id, transition.version, transition.transition) == ("task", taken.id, 1, "expire")
    assert (transition.from_state, transition.to_state, transition.at) == ("pending", "pending", clock.now())
    assert (transition.run_id, transition.root_id, transition.trace_id) == (taken.run_id, taken.root_id, "t-1")
    assert (await get(store, taken.id)).version == 1


async def test_the_holder_of_an_expired_lease_is_fenced_off(store, clock):
    taken = await put_and_claim(store)
    await clock.advance(MINUTE)
    await store.tasks.wake(100)
    before = await everything(store)
    for settlement in (succeed(), requeue(taken), Keep('{"late":1}')):
        for followers in ((), (new_task(OTHER),)):
            assert await settle(store, taken.claim, settlement, *followers) == Verdict.CLAIM_LOST
    assert await everything(store) == before


async def test_without_expire_leases_owned_tasks_are_left_alone_and_others_woken(store, clock):
    owned = await put_and_claim(store)
    slept = await put_one(store, OTHER, delay=1_000)
    await clock.advance(MINUTE)
    woken = await store.tasks.wake(100, expire_leases=False)
    assert (woken.count, woken.expired, woken.overdue) == (1, 0, True)
    assert woken.now == await store.now()
    assert (await get(store, owned.id)).owner_id == "owner-1"
    assert (await get(store, slept.id)).wake_at is None
    assert await settle(store, owned.claim, succeed()) == Verdict.DONE


async def test_a_lease_that_holds_is_not_overdue(store, clock):
    await put_and_claim(store)
    assert not (await store.tasks.wake(100, expire_leases=False)).overdue
    await clock.advance(MINUTE)
    assert (await store.tasks.wake(100, expire_leases=False)).overdue
    await store.tasks.wake(100)
    assert not (await store.tasks.wake(100, expire_leases=False)).overdue


async def test_without_expire_leases_expired_leases_do_not_block_sleepers(store, clock):
    await put(store, *[new_task() for _ in range(5)])
    await claim(store, lease_for=1_000)
    await put_one(store, OTHER, delay=2_000)
    await clock.advance(MINUTE)
    assert (await store.tasks.wake(2, expire_leases=False)).count == 1


async def test_a_wake_is_limited_and_reports_that_more_tasks_are_due(store, clock):
    await put(store, *[new_task(delay=10) for _ in range(5)])
    await clock.advance(10)
    first = await store.tasks.wake(3)
    assert (first.count, first.next_for) == (3, 0)
    second = await store.tasks.wake(3)
    assert (second.count, second.next_for) == (2, None)


async def test_a_wake_returns_the_time_until_the_next(store, clock):
    await put(store, new_task(delay=5_000), new_task(delay=8_000))
    assert (await store.tasks.wake(10)).next_for == 5_000
    await clock.advance(5_000)
    assert (await store.tasks.wake(10)).next_for == 3_000
    await clock.advance(3_000)
    assert (await store.tasks.wake(10)).next_for is None


async def test_a_wake_names_the_queues_in_which_it_made_tasks_ready(store, clock):
    await put(store, new_task(WORK, delay=10), new_task(OTHER, delay=10), new_task(OTHER, delay=10))
    await put(store, new_task(WORK._replace(name="third"), delay=99))
    ids = await store.tasks.queue_ids([WORK, OTHER])
    await clock.advance(10)
    woken = await store.tasks.wake(10)
    assert sorted(woken.queue_ids) == sorted(ids.values())


async def test_a_blocked_task_stays_blocked_at_its_due_time(store, clock):
    task = await put_one(store, delay=1_000)
    before = await get(store, task.id)
    await settle(store, seen(before), requeue(before, "pause", blocked_by=BlockReason.TASK_PAUSED, delay=1_000))
    await clock.advance(1_000)
    await store.tasks.wake(100)
    assert (await get(store, task.id)).blocked_by == BlockReason.TASK_PAUSED
    assert await claim(store) == []


async def test_concurrent_callers_never_wake_the_same_task_twice(store, clock):
    await put(store, *[new_task() for _ in range(60)])
    taken = await claim(store, lease_for=1_000)
    await put(store, *[new_task(delay=1_000) for _ in range(40)])
    await clock.advance(1_000)
    woken = []
    for _ in range(20):
        woken += await asyncio.gather(*[store.tasks.wake(9) for _ in range(6)])
    assert (sum(one.count for one in woken), sum(one.expired for one in woken)) == (100, 60)
    for task in taken:
        assert transitions_of(await store.log.list_transitions(task.id)) == ["expire"]
        assert (await get(store, task.id)).takeovers == 1
    assert await store.tasks.wake(1000) == Woken(0, 0, (), None)


async def test_a_renewed_lease_does_not_expire_at_its_first_end(store, clock, line):
    from treadle.kernel.store.queries import Renewal

    taken = await put_and_claim(store, lease_for=30_000)
    await clock.advance(20_000)
    await line.renew([Renewal(taken.claim)], 30_000)
    await clock.advance(20_000)
    assert (await store.tasks.wake(100)).count == 0
    await clock.advance(10_000)
    assert (await store.tasks.wake(100)).expired == 1


async def test_a_call_reports_ready_tasks_if_it_is_to_find_them(store, clock):
    assert not (await store.tasks.wake(100, find_ready=True)).ready
    await put_one(store, delay=1_000)
    assert not (await store.tasks.wake(100, find_ready=True)).ready
    await clock.advance(1_000)
    assert not (await store.tasks.wake(100, find_ready=True)).ready  # it was not ready before
    assert (await store.tasks.wake(100, find_ready=True)).ready
    assert not (await store.tasks.wake(100)).ready
    await put_one(store, delay=1_000)
    await clock.advance(1_000)
    woken = await store.tasks.wake(100, find_ready=True)
    assert (woken.count, woken.ready) == (1, True)
    assert len(await claim(store, limit=10)) == 2
    assert not (await store.tasks.wake(100, find_ready=True)).ready
