"""Tasks with several limit keys: all of the keys admit them or none does, and each limit holds for all tasks with its key."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Any

from treadle.kernel.store.ports import Store
from treadle.kernel.store.units import BlockRun, CancelRunTasks, LimitTask, Redrive, Unit
from treadle.model.lists import Limit
from treadle.model.names import DEFAULT_NAMESPACE
from treadle.model.states import BlockReason
from treadle.model.tasks import NewTask, Task
from treadle_conformance.task_steps import (
    cancel,
    claim,
    claim_one,
    commit_one,
    fail,
    get,
    in_order,
    new_task,
    put,
    requeue,
    seen,
    settle,
    succeed,
)

API = "api"
RUN_ID = "0198c3de-7a10-7c3e-b2a4-5d1f0c9e8a77"


def keyed(*keys: str, **fields: Any) -> NewTask:
    ordered = sorted(keys)
    several = {"limit_keys": "\n".join(ordered)} if len(ordered) > 1 else {}
    return new_task(limit_key=ordered[0], **several, **fields)


async def set_max(store: Store, **limits: int) -> None:
    for key, most in limits.items():
        await store.operators.set_limit(DEFAULT_NAMESPACE, key, most)


async def limits_of(store: Store) -> dict[str, Limit]:
    return {limit.key: limit for limit in await store.operators.list_limits(DEFAULT_NAMESPACE)}


async def admitted(store: Store, key: str) -> list[str]:
    return await store.operators.list_admitted(DEFAULT_NAMESPACE, key, 1_000)


async def end(store: Store, task: Task) -> None:
    await settle(store, task.claim, succeed())


async def test_a_task_starts_once_all_its_keys_have_room(store):
    await set_max(store, api=2, ada=1, bob=1)
    tasks = [keyed(API, "ada"), keyed(API, "ada"), keyed(API, "bob"), keyed(API, "bob"), keyed(API)]
    await put(store, *tasks)
    first = await claim(store)
    assert in_order(first) == in_order([tasks[0], tasks[2]])
    await end(store, first[0])
    (second,) = await claim(store)
    assert second.id == tasks[1].id
    await end(store, first[1])
    (third,) = await claim(store)
    assert third.id == tasks[3].id
    await end(store, second)
    assert (await claim_one(store)).id == tasks[4].id


async def test_a_full_key_does_not_hold_back_the_others(store):
    await set_max(store, api=2, ada=1)
    await put(store, *[keyed(API, "ada") for _ in range(700)])
    (ada,) = await claim(store)
    others = [keyed(API, "bob"), keyed(API)]
    await put(store, *others)
    (bob,) = await claim(store)
    assert bob.id == others[0].id
    await end(store, bob)
    assert (await claim_one(store)).id == others[1].id
    await end(store, ada)
    assert len(await claim(store)) == 1


async def test_tasks_of_one_key_and_of_several_start_in_order(store):
    await set_max(store, api=1)
    tasks = [keyed(API, "ada"), keyed(API), keyed(API, "bob"), keyed(API)]
    await put(store, *tasks)
    order = []
    while taken := await claim(store):
        (task,) = taken
        order.append(task.id)
        await end(store, task)
    assert order == [task.id for task in tasks]


async def test_keys_without_a_limit_admit_everything(store):
    tasks = [keyed("ada", "bob"), keyed("ada", "bob", "eve")]
    await put(store, *tasks)
    assert in_order(await claim(store)) == in_order(tasks)


async def test_the_use_of_every_key_is_counted_and_its_holders_are_known(store):
    await set_max(store, api=3, ada=1)
    tasks = [keyed(API, "ada"), keyed(API, "ada"), keyed(API)]
    await put(store, *tasks)
    limits = await limits_of(store)
    assert (limits[API].admitted, limits["ada"].admitted, limits["ada"].waiting) == (2, 1, 1)
    assert await admitted(store, API) == in_order([tasks[0], tasks[2]])
    assert await admitted(store, "ada") == [tasks[0].id]
    waiting = await get(store, tasks[1].id)
    assert (waiting.limit_key, waiting.all_limit_keys) == ("ada", ("ada", API))


async def _succeed(store: Store, task: Task) -> None:
    await end(store, task)


async def _retry(store: Store, task: Task) -> None:
    await settle(store, task.claim, requeue(task, "retry", delay=60_000))


async def _cancel(store: Store, task: Task) -> None:
    await commit_one(store, seen(await get(store, task.id)), cancel())


async def _block_run(store: Store, task: Task) -> None:
    await settle(store, task.claim, requeue(task))
    await store.commit([Unit(rows=(BlockRun(RUN_ID, True),))])


async def _cancel_run(store: Store, task: Task) -> None:
    await store.commit([Unit(rows=(CancelRunTasks(RUN_ID, "ann", "{}"),))])


async def test_departing_work_frees_all_its_keys(store):
    await set_max(store, api=1, ada=1)
    for depart in (_succeed, _retry, _cancel, _cancel_run, _block_run):
        first = keyed(API, "ada", run_id=RUN_ID)
        await put(store, first)
        (task,) = await claim(store)
        assert task.id == first.id
        others = [keyed(API), keyed("ada")]
        await put(store, *others)
        assert await claim(store) == []
        await depart(store, task)
        claimed = await claim(store)
        assert in_order(claimed) == in_order(others), depart.__name__
        for other in claimed:
            await end(store, other)
        assert {limit.admitted for limit in (await limits_of(store)).values()} == {0}, depart.__name__


async def test_a_task_that_gets_another_key_counts_under_none_of_the_former_ones(store):
    await set_max(store, api=1, ada=1)
    await put(store, keyed(API, "ada"))
    task = await claim_one(store)
    for key in (None, "other"):
        await store.commit([Unit(guard=task.claim, rows=(LimitTask(task.id, key),))])
        assert {limit.admitted for limit in (await limits_of(store)).values()} == {0}


async def test_an_expired_lease_and_a_redriven_task_wait_for_all_keys_again(store, clock):
    await set_max(store, api=1, ada=1)
    task = keyed(API, "ada")
    await put(store, task)
    await claim_one(store)
    await clock.advance(60_000)
    await store.tasks.wake(10)
    again = await claim_one(store)
    assert (again.id, again.claim_version) == (task.id, 2)
    await settle(store, again.claim, fail())
    other = keyed(API)
    await put(store, other)
    await claim_one(store)
    await commit_one(store, seen(await get(store, task.id)), Redrive("requeue", "ann"))
    assert await claim(store) == []
    assert (await get(store, task.id)).blocked_by == BlockReason.OVER_LIMIT


async def test_a_rate_of_any_key_holds(store, clock):
    await store.operators.set_key_rate(DEFAULT_NAMESPACE, API, 2.0, 2)
    await set_max(store, ada=3)
    await put(store, *[keyed("ada", API) for _ in range(5)])
    assert len(await claim(store)) == 2
    await clock.advance(500)
    await store.tasks.wake(10)
    assert len(await claim(store)) == 1
    await clock.advance(5_000)
    await store.tasks.wake(10)
    assert await claim(store) == []  # now the other key is full
    assert (await limits_of(store))["ada"].admitted == 3


async def test_a_changed_limit_applies_to_waiting_tasks_with_several_keys(store):
    await set_max(store, api=1, ada=5)
    await put(store, *[keyed(API, "ada") for _ in range(7)])
    assert len(await claim(store)) == 1
    await set_max(store, api=4)
    assert len(await claim(store)) == 3
    await store.operators.set_limit(DEFAULT_NAMESPACE, API, None)
    assert len(await claim(store)) == 1


async def test_concurrent_claimers_never_exceed_a_limit_and_finish_everything(database, store):
    """Eight claimers, limits of three and four, keys in every combination."""
    await set_max(store, api=4, ada=3, bob=3)
    combinations = [(API,), ("ada",), (API, "ada"), (API, "bob"), (API, "ada", "bob"), ("ada", "bob")]
    tasks = [keyed(*combinations[number % len(combinations)]) for number in range(90)]
    keys = {task.id: (task.limit_keys or task.limit_key).split("\n") for task in tasks}
    stores = [store, *[await database.open_store() for _ in range(3)]]
    for start in range(0, len(tasks), 15):
        await put(store, *tasks[start : start + 15])
    running: Counter[str] = Counter()
    done: list[str] = []
    most = {API: 4, "ada": 3, "bob": 3}

    async def work(number: int) -> None:
        own, pause = stores[number % len(stores)], random.Random(number)
        while len(done) < len(tasks):
            for task in await claim(own, owner=f"owner-{number}", limit=2):
                running.update(keys[task.id])
                assert all(running[key] <= most[key] for key in most), running
                await asyncio.sleep(pause.random() / 1000)
                running.subtract(keys[task.id])
                await settle(own, task.claim, succeed())
                done.append(task.id)
            await own.tasks.wake(100)

    async with asyncio.timeout(300):
        await asyncio.gather(*[work(number) for number in range(8)])
    assert sorted(done) == in_order(tasks)
    assert {limit.admitted for limit in (await limits_of(store)).values()} == {0}
