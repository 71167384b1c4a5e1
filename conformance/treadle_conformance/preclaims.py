"""Preclaimed tasks: their creator holds them from the commit that inserts them, and no worker ever sees them unclaimed."""

from __future__ import annotations

import pytest

from treadle.kernel.store.units import Unit, Verdict
from treadle.model.names import DEFAULT_LIST, DEFAULT_NAMESPACE
from treadle.model.states import BlockReason
from treadle.model.tasks import Claim, Preclaimed
from treadle_conformance.task_steps import (
    MINUTE,
    WORK,
    claim,
    claim_one,
    fail,
    get,
    new_task,
    put,
    put_and_claim,
    requeue,
    settle,
    succeed,
)

MINE = Preclaimed("me", MINUTE)


async def test_a_preclaimed_task_equals_a_claimed_one(store, clock):
    preclaimed = new_task(preclaimed=MINE, payload='{"a":1}')
    plain = new_task()
    assert (await put(store, preclaimed, plain)).verdict == Verdict.DONE
    held = await get(store, preclaimed.id)
    taken = await claim_one(store, owner="me")
    assert taken.id == plain.id, "the other one is nobody else's to take"
    fields = (
        "owner_id",
        "claim_version",
        "claimed_at",
        "heartbeat_at",
        "progress_at",
        "wake_at",
        "attempt",
        "version",
        "state",
        "blocked_by",
    )
    assert [getattr(held, name) for name in fields] == [getattr(await get(store, plain.id), name) for name in fields]
    assert (held.claim, held.claimed_at, held.wake_at) == (Claim(preclaimed.id, 1, "me"), clock.now(), clock.now() + MINUTE)
    assert held.payload == '{"a":1}'


async def test_only_the_holder_of_a_preclaimed_task_settles_it(store):
    first, second = new_task(preclaimed=MINE), new_task(preclaimed=MINE)
    await put(store, first, second)
    assert await settle(store, Claim(first.id, 1, "other"), succeed()) == Verdict.CLAIM_LOST
    assert await settle(store, Claim(first.id, 1, "me"), succeed()) == Verdict.DONE
    assert await settle(store, Claim(second.id, 1, "me"), requeue(await get(store, second.id), "release")) == Verdict.DONE
    assert (await claim_one(store, owner="other")).claim == Claim(second.id, 2, "other")


async def test_a_preclaimed_lease_expires_normally(store, clock):
    preclaimed = new_task(preclaimed=MINE)
    await put(store, preclaimed)
    await clock.advance(MINUTE)
    woken = await store.tasks.wake(10)
    assert (woken.count, woken.expired) == (1, 1)
    taken = await claim_one(store, owner="other")
    assert (taken.id, taken.claim_version, taken.takeovers) == (preclaimed.id, 2, 1)


async def test_a_preclaimed_task_is_created_atomically_with_the_settle_of_another(store):
    parent = await put_and_claim(store, owner="me")
    child = new_task(preclaimed=MINE)
    assert await settle(store, Claim(parent.id, 7, "me"), succeed(), child) == Verdict.CLAIM_LOST
    assert await store.tasks.find(child.id) is None
    assert await settle(store, parent.claim, succeed(), child) == Verdict.DONE
    assert (await get(store, child.id)).claim == Claim(child.id, 1, "me")


async def test_resending_a_preclaim_is_a_no_op(store):
    preclaimed = new_task(preclaimed=MINE)
    await put(store, preclaimed)
    held = await get(store, preclaimed.id)
    assert (await put(store, preclaimed)).verdict == Verdict.DONE
    assert await get(store, preclaimed.id) == held
    await settle(store, held.claim, requeue(held, "release"))
    await put(store, preclaimed)
    assert (await get(store, preclaimed.id)).owner_id is None, "it was given back, and is free"
    await settle(store, (await claim_one(store)).claim, fail())
    await put(store, preclaimed)
    assert (await get(store, preclaimed.id)).finished


@pytest.mark.parametrize("fields", [{"delay": 500}, {"blocked_by": BlockReason.TASK_PAUSED}], ids=["waits", "blocked"])
async def test_the_preclaim_of_a_task_that_is_not_ready_is_ignored(store, fields):
    preclaimed = new_task(preclaimed=MINE, **fields)
    await put(store, preclaimed)
    task = await get(store, preclaimed.id)
    assert (task.owner_id, task.claim_version, task.claimed_at) == (None, 0, None)
    assert await claim(store) == []


async def test_one_of_a_paused_list_or_of_a_queue_with_a_rate_is_a_task_like_any_other(store):
    await put(store, new_task())
    queue_id = (await store.tasks.queue_ids([WORK]))[WORK]
    await store.operators.set_list(DEFAULT_NAMESPACE, DEFAULT_LIST, paused=True)
    paused = new_task(preclaimed=MINE)
    await put(store, paused)
    assert (await get(store, paused.id)).owner_id is None
    await store.operators.set_list(DEFAULT_NAMESPACE, DEFAULT_LIST, paused=False)
    await store.operators.set_rate(queue_id, 1.0, 1)
    slowed = new_task(preclaimed=MINE)
    await put(store, slowed)
    assert (await get(store, slowed.id)).owner_id is None


async def test_a_limit_bounds_the_preclaimed_tasks(store):
    tasks = [new_task(preclaimed=MINE, limit_key="k", limit=2) for _ in range(3)]
    await put(store, *tasks)
    assert [(await get(store, task.id)).owner_id for task in tasks] == ["me", "me", None]
    assert await settle(store, Claim(tasks[0].id, 1, "me"), succeed()) == Verdict.DONE
    assert (await claim_one(store, owner="other")).id == tasks[2].id


async def test_units_of_one_commit_preclaim_for_their_own_workers(store):
    tasks = [new_task(preclaimed=Preclaimed(f"owner-{number}", MINUTE * number)) for number in range(1, 4)]
    await store.commit([Unit(tasks=(task,)) for task in tasks])
    found = [await get(store, task.id) for task in tasks]
    assert [(task.owner_id, task.wake_at - task.claimed_at) for task in found] == [
        (f"owner-{number}", MINUTE * number) for number in range(1, 4)
    ]


async def test_a_preclaimed_task_with_a_used_idempotency_key_is_not_created(store):
    first = new_task(idempotency_key="once", preclaimed=MINE)
    again = new_task(idempotency_key="once", preclaimed=Preclaimed("other", MINUTE))
    await put(store, first)
    assert (await put(store, again)).same == {again.id: first.id}
    assert await store.tasks.find(again.id) is None
    assert (await get(store, first.id)).owner_id == "me"


# those of a worker, which yield to tasks that wait
