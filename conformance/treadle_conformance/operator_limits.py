"""Limits that callers and operators set, and the guarantee under concurrency."""

from __future__ import annotations

import asyncio
import random

import pytest

from treadle.kernel.store.ports import Store
from treadle.kernel.store.units import BlockRun, CancelRunTasks, Redrive, Unit, Verdict
from treadle.model.names import DEFAULT_NAMESPACE
from treadle.model.tasks import Task
from treadle_conformance.limits import HANDLER_KEY, KEY, RUN_ID, admitted, limit_of, put_limited
from treadle_conformance.task_steps import (
    MINUTE,
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

# --- what callers and operators say ---


async def test_a_caller_changes_the_limit_of_a_key(store):
    await put_limited(store, 6, limit=1)
    await put_limited(store, 1, limit=4)
    assert await limit_of(store) == (4, False, 4, 3)


async def test_an_operators_limit_overrides_the_limits_of_callers(store):
    await store.operators.set_limit(DEFAULT_NAMESPACE, KEY, 2)
    await put_limited(store, 6, limit=5)
    assert await limit_of(store) == (2, True, 2, 4)
    assert len(await claim(store)) == 2


async def test_a_limit_set_later_also_applies_to_unclaimed_tasks(store):
    await put(store, *[new_task(limit_key=KEY) for _ in range(10)])
    running = await claim(store, limit=2)
    await store.operators.set_limit(DEFAULT_NAMESPACE, KEY, 3)
    assert await limit_of(store) == (3, True, 3, 7)
    assert len(await claim(store)) == 1
    await settle(store, running[0].claim, succeed())
    assert len(await claim(store)) == 1


async def test_a_later_limit_of_a_caller_applies_to_unclaimed_tasks(store):
    await put(store, *[new_task(limit_key=KEY) for _ in range(10)])
    await put_limited(store, 1, limit=2)
    assert await limit_of(store) == (2, False, 2, 9)


async def test_a_lowered_limit_keeps_running_tasks_and_starts_none(store):
    await put_limited(store, 8, limit=4)
    running = await claim(store)
    await store.operators.set_limit(DEFAULT_NAMESPACE, KEY, 2)
    for number, task in enumerate(running):
        await settle(store, task.claim, succeed())
        assert len(await claim(store)) == (0 if number < 2 else 1)


async def test_tasks_with_expired_leases_wait_for_slots_under_a_lowered_limit(store, clock):
    await put_limited(store, 5, limit=4)
    assert len(await claim(store)) == 4
    await store.operators.set_limit(DEFAULT_NAMESPACE, KEY, 2)
    await clock.advance(MINUTE)
    woken = await store.tasks.wake(100)
    assert (woken.expired, len(woken.queue_ids)) == (4, 1)
    assert [task.takeovers for task in await claim(store)] == [1, 1]
    assert await limit_of(store) == (2, True, 2, 3)


async def test_a_raised_limit_admits_the_next_tasks_and_returns_their_queues(store):
    await put_limited(store, 5, limit=1)
    taken = await claim_one(store)
    assert await store.operators.set_limit(DEFAULT_NAMESPACE, KEY, 3) == (taken.queue_id,)
    assert len(await claim(store)) == 2


async def test_a_removed_limit_holds_no_task_back(store):
    await put_limited(store, 5, limit=1)
    queues = await store.operators.set_limit(DEFAULT_NAMESPACE, KEY, None)
    assert (len(queues), await limit_of(store)) == (1, None)
    assert len(await claim(store)) == 5


async def test_a_handlers_limit_is_that_of_all_its_tasks_without_a_key(store):
    await store.operators.set_limit(DEFAULT_NAMESPACE, HANDLER_KEY, 2)
    slow = WORK._replace(task_list="slow")
    await put(store, *[new_task() for _ in range(3)], *[new_task(slow) for _ in range(3)], new_task(OTHER), new_task(limit_key=KEY))
    taken = await claim(store, WORK, limit=100) + await claim(store, slow)
    assert len(taken) == 3
    assert [task.limit_key for task in taken].count(HANDLER_KEY) == 2
    assert len(await claim(store, OTHER)) == 1


async def test_a_handlers_limit_also_holds_for_tasks_that_are_there_already(store):
    await put(store, *[new_task() for _ in range(6)], new_task(delay=MINUTE))
    running = await claim(store, limit=3)
    await store.operators.set_limit(DEFAULT_NAMESPACE, HANDLER_KEY, 2)
    assert await limit_of(store, HANDLER_KEY) == (2, True, 3, 3)
    assert await claim(store) == []
    for task in running:
        await settle(store, task.claim, succeed())  # taken before it had a key
    assert len(await claim(store)) == 2


async def test_a_removed_limit_of_a_handler_applies_to_no_new_task(store):
    await store.operators.set_limit(DEFAULT_NAMESPACE, HANDLER_KEY, 1)
    await put(store, *[new_task() for _ in range(3)])
    await store.operators.set_limit(DEFAULT_NAMESPACE, HANDLER_KEY, None)
    await put(store, new_task())
    taken = await claim(store)
    assert [task.limit_key for task in taken] == [HANDLER_KEY] * 3 + [None]


async def test_a_handlers_limit_can_be_set_during_concurrent_inserts(database, store):
    await store.operators.set_limit(DEFAULT_NAMESPACE, HANDLER_KEY, 1000)
    others = [await database.open_store() for _ in range(3)]

    async def put_many(other: Store) -> None:
        for _ in range(20):
            await put(other, new_task())

    async def set_often() -> None:
        for number in range(20):
            await store.operators.set_limit(DEFAULT_NAMESPACE, HANDLER_KEY, 1000 + number)

    await asyncio.gather(set_often(), *map(put_many, others))
    assert await limit_of(store, HANDLER_KEY) == (1019, True, 60, 0)


async def test_a_redriven_task_gets_the_limit_of_its_handler(store):
    await put_one(store)
    taken = await claim_one(store)
    await settle(store, taken.claim, fail())
    await store.operators.set_limit(DEFAULT_NAMESPACE, HANDLER_KEY, 1)
    await commit_one(store, seen(await get(store, taken.id)), Redrive("requeue", "ann"))
    assert await admitted(store, HANDLER_KEY) == [taken.id]


async def test_tasks_of_a_paused_list_free_their_slots_for_others(store):
    slow = WORK._replace(task_list="slow")
    first = [new_task(slow, limit_key=KEY, limit=2) for _ in range(3)]
    await put(store, *first)
    await claim(store, slow, limit=1)
    others = await put_limited(store, 2, limit=2)
    queues = await store.operators.set_list(DEFAULT_NAMESPACE, "slow", paused=True)
    assert sorted(await admitted(store)) == sorted([first[0].id, others[0].id])
    assert len(queues) == 2
    for task in (first[0], others[0], others[1]):
        await settle(store, seen(await get(store, task.id)), cancel())
    assert await admitted(store) == []
    await store.operators.set_list(DEFAULT_NAMESPACE, "slow", paused=False)
    assert sorted(await admitted(store)) == sorted(in_order(first[1:]))


# --- always ---


async def check(store: Store, key: str, most: int) -> None:
    """Never more than the limit, and as many as there are if there is room."""
    (limit,) = [limit for limit in await store.operators.list_limits(DEFAULT_NAMESPACE) if limit.key == key]
    assert limit.admitted <= most
    assert limit.admitted == most or limit.waiting == 0


@pytest.mark.parametrize("seed", range(6))
async def test_the_limit_is_never_exceeded_and_no_slot_stays_free_while_tasks_wait(store, clock, seed):
    rng = random.Random(seed)
    most = 3
    await store.operators.set_limit(DEFAULT_NAMESPACE, KEY, most)
    held: dict[str, Task] = {}
    known: list[str] = []
    for _ in range(60):
        match rng.choice(["put", "put", "claim", "claim", "settle", "settle", "settle", "wake", "operate", "run"]):
            case "put":
                tasks = [
                    new_task(
                        rng.choice((WORK, OTHER)),
                        limit_key=rng.choice((KEY, KEY, KEY, None)),
                        priority=rng.randint(0, 2),
                        delay=rng.choice((0, 0, 0, 500)),
                        run_id=rng.choice((None, RUN_ID)),
                    )
                    for _ in range(rng.randint(1, 4))
                ]
                await put(store, *tasks)
                known += in_order(tasks)
            case "claim":
                for task in await claim(store, WORK, OTHER, lease_for=rng.choice((1_000, MINUTE)), limit=rng.randint(1, 4)):
                    held[task.id] = task
            case "settle" if held:
                chosen = rng.sample(sorted(held), rng.randint(1, len(held)))
                units = []
                for task in [held.pop(task_id) for task_id in chosen]:
                    kinds = (
                        succeed(),
                        succeed(),
                        fail(),
                        requeue(task, delay=700),
                        requeue(task, "retry"),
                        requeue(task, "pause", blocked_by=8),
                    )
                    units.append(Unit(task.claim, rng.choice(kinds), tuple([new_task(limit_key=KEY)] * rng.randint(0, 1))))
                await store.commit(units)
            case "wake":
                await clock.advance(rng.choice((0, 500, 1_000)))
                await store.tasks.wake(100)
            case "operate" if known:
                task = await get(store, rng.choice(known))
                if task.finished:
                    what = Redrive("requeue", "ann")
                elif rng.random() < 0.5:
                    what = cancel()
                else:
                    what = requeue(task, "resume", blocked_by=0) if task.blocked_by & 8 else requeue(task, "pause", blocked_by=8)
                await settle(store, seen(task), what)
            case "run":
                rows = (BlockRun(RUN_ID, rng.random() < 0.5), CancelRunTasks(RUN_ID, "ann", "{}"))
                await store.commit([Unit(rows=(rows[rng.random() < 0.1],))])
        await check(store, KEY, most)
        live = [await get(store, task_id) for task_id in held]
        assert sum(task.limit_key == KEY and task.owner_id is not None for task in live) <= most


async def test_concurrent_claimers_on_several_stores_never_hold_more_than_the_limit(database, store):
    """Eight callers claim concurrently while some held tasks end; each round counts the held tasks."""
    stores = [store, *[await database.open_store() for _ in range(3)]]
    tasks = await put_limited(store, 40)
    held: list[Task] = []
    ended: list[str] = []
    counts: list[int] = []
    while len(ended) < len(tasks):
        ending, held = held[: len(counts) % 3 + 1], held[len(counts) % 3 + 1 :]
        claims = [claim(stores[number % 4], owner=f"owner-{number}", limit=2) for number in range(8)]
        ends = [settle(stores[number % 4], task.claim, succeed()) for number, task in enumerate(ending)]
        taken, verdicts = await asyncio.gather(asyncio.gather(*claims), asyncio.gather(*ends))
        assert set(verdicts) <= {Verdict.DONE}
        held += [task for some in taken for task in some]
        ended += in_order(ending)
        counts.append(len(held))
    assert max(counts) <= 3
    assert sorted(ended) == sorted(in_order(tasks))


async def test_concurrent_inserts_with_a_new_limit_admit_no_more_than_it_allows(database, store):
    stores = [store, *[await database.open_store() for _ in range(3)]]
    tasks = [new_task(limit_key=KEY, limit=3) for _ in range(40)]
    await asyncio.gather(*[put(stores[number % 4], task) for number, task in enumerate(tasks)])
    assert await limit_of(store) == (3, False, 3, 37)
