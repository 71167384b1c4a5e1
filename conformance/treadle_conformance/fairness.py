"""Fair queueing: tasks with fairness keys interleave by key, within a queue and a priority; all other tasks keep their order."""

from __future__ import annotations

import random
from collections import Counter, deque

from treadle.kernel.store.ports import Store
from treadle.kernel.store.units import Redrive, Unit
from treadle.model.names import DEFAULT_NAMESPACE
from treadle.model.states import BlockReason
from treadle_conformance.task_steps import claim, claim_one, fail, get, new_task, put, requeue, seen, settle, succeed


async def put_fair(store: Store, key: str | None, count: int, **fields: object) -> list[str]:
    tasks = [new_task(fairness_key=key, **fields) for _ in range(count)]
    await put(store, *tasks)
    return [task.id for task in tasks]


async def keys_in_order(store: Store, limit: int) -> list[str | None]:
    return [task.fairness_key for _ in range(limit) for task in await claim(store, limit=1)]


def in_rotation(*queues: tuple[str, int]) -> list[str]:
    """The reference: each key in turn, in the order of their first tasks, while it has tasks left."""
    left = deque(queues)
    order = []
    while left:
        key, count = left.popleft()
        order.append(key)
        if count > 1:
            left.append((key, count - 1))
    return order


async def test_a_key_with_many_tasks_does_not_hold_back_one_with_few(store):
    await put_fair(store, "a", 300)
    assert await keys_in_order(store, 20) == ["a"] * 20
    await put_fair(store, "b", 10)
    assert (await keys_in_order(store, 21)).count("b") == 10


async def test_keys_alternate_like_the_reference(store):
    await put_fair(store, "a", 5)
    await put_fair(store, "b", 2)
    await put(store, *[new_task(fairness_key=key) for key in ("c", "c", "c", "d", "c")])
    assert await keys_in_order(store, 12) == in_rotation(("a", 5), ("b", 2), ("c", 4), ("d", 1))


async def test_each_priority_has_a_rotation_of_its_own(store):
    await put_fair(store, "a", 3)
    await put_fair(store, "b", 1)
    await put_fair(store, "a", 3, priority=-1)
    await put_fair(store, "b", 1, priority=-1)
    assert await keys_in_order(store, 8) == in_rotation(("a", 3), ("b", 1)) * 2


async def test_tasks_without_a_fairness_key_keep_their_place_by_time(store, clock):
    first = await put_fair(store, None, 2)
    await clock.advance(10)
    await put_fair(store, "a", 3)
    await clock.advance(10)
    last = await put_fair(store, None, 2)
    taken = [(await claim_one(store)) for _ in range(7)]
    assert [task.id for task in taken if task.fairness_key is None] == [*first, *last]
    assert [task.fairness_key for task in taken] == [None, None, "a", "a", "a", None, None]


async def test_delayed_tasks_join_the_rotation_when_they_become_due(store, clock):
    await put_fair(store, "a", 4, delay=1_000)
    await put_fair(store, "b", 2, delay=1_000)
    await clock.advance(1_000)
    await store.tasks.wake(100)
    await put_fair(store, "c", 1)
    taken = await keys_in_order(store, 7)
    assert (Counter(taken[:3]), Counter(taken[3:5])) == ({"a": 1, "b": 1, "c": 1}, {"a": 1, "b": 1})


async def test_redriven_tasks_join_the_rotation(store):
    ids = await put_fair(store, "a", 4)
    for task in await claim(store):
        await settle(store, task.claim, fail())
    await store.commit([Unit(seen(await get(store, each)), Redrive("requeue", "ann")) for each in ids])
    await put_fair(store, "b", 2)
    assert await keys_in_order(store, 6) == in_rotation(("a", 4), ("b", 2))


async def test_the_rotation_applies_under_a_limit(store):
    await store.operators.set_limit(DEFAULT_NAMESPACE, "k", 1)
    await put_fair(store, "a", 5, limit_key="k")
    await put_fair(store, "b", 2, limit_key="k")
    order = []
    for _ in range(7):
        task = await claim_one(store)
        order.append(task.fairness_key)
        await settle(store, task.claim, succeed())
    assert Counter(order[:4]) == {"a": 2, "b": 2}
    assert order[4:] == ["a"] * 3


async def test_a_paused_task_does_not_stop_the_rotation(store, clock):
    await put_fair(store, "paused", 1, blocked_by=BlockReason.TASK_PAUSED)
    await clock.advance(60_000)
    await put_fair(store, "a", 30)
    order: list[str | None] = []
    for _ in range(40):
        if order.count("b") % 5 == 0 and order[-1:] != ["a"]:  # the other key is empty again and again, and joins at the front
            await put_fair(store, "b", 5)
        order += await keys_in_order(store, 1)
        await clock.advance(10)
    assert Counter(order) == {"a": 20, "b": 20}


async def test_a_retried_task_keeps_its_place_in_the_rotation(store):
    await put_fair(store, "a", 2)
    await put_fair(store, "b", 2)
    task = await claim_one(store)
    await settle(store, task.claim, requeue(task, "retry"))
    assert (await claim_one(store)).id == task.id


async def test_no_key_is_overtaken_by_more_than_two_tasks_of_another(store, clock):
    rng = random.Random(11)
    waiting: Counter[str] = Counter()
    overtaken: dict[str, Counter[str]] = {}
    taken = 0
    for _ in range(150):
        if rng.random() < 0.35:
            key, count = rng.choice("abcde"), rng.choice((1, 1, 2, 5, 30))
            await put_fair(store, key, count)
            if not waiting[key]:
                overtaken[key] = Counter()
            waiting[key] += count
            await clock.advance(rng.choice((0, 0, 3, 50)))
            continue
        for task in await claim(store, limit=rng.randint(1, 3)):
            key = task.fairness_key
            taken += 1
            waiting[key] -= 1
            overtaken[key] = Counter()
            for other, count in waiting.items():
                if other != key and count:
                    overtaken[other][key] += 1
                    assert overtaken[other][key] <= 2, (other, key)
    assert taken > 100
