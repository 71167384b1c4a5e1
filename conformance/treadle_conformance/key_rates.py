"""Rates of limit keys: in any span of time, no more tasks of a key start than its burst and its rate allow, across all workers."""

from __future__ import annotations

import asyncio
import random

from treadle.kernel.store.ports import Store
from treadle.kernel.store.units import LimitTask, Redrive, Unit, Verdict
from treadle.model.lists import Limit
from treadle.model.names import DEFAULT_NAMESPACE
from treadle.model.states import BlockReason
from treadle.model.tasks import NewTask, Preclaimed, Task, TaskLimit
from treadle_conformance.task_steps import (
    MINUTE,
    OTHER,
    WORK,
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

KEY = "stripe"


async def rate(store: Store, rate: float | None, burst: int | None = None, key: str = KEY) -> tuple[int, ...]:
    return await store.operators.set_key_rate(DEFAULT_NAMESPACE, key, rate, burst)


async def limit(store: Store, key: str = KEY) -> Limit | None:
    return {each.key: each for each in await store.operators.list_limits(DEFAULT_NAMESPACE)}.get(key)


async def put_keyed(store: Store, count: int, **fields: object) -> list[str]:
    tasks = [new_task(limit_key=KEY, **fields) for _ in range(count)]
    await put(store, *tasks)
    return in_order(tasks)


async def test_a_key_with_a_rate_starts_a_burst_and_then_one_task_for_each_token(store, clock):
    await rate(store, 2.0, 3)
    ids = await put_keyed(store, 6)
    assert in_order(await claim(store)) == ids[:3]
    assert await claim(store) == []
    assert (await store.tasks.wake(10)).next_for == 500
    await clock.advance(499)
    assert (await store.tasks.wake(10)).queue_ids == ()
    await clock.advance(1)
    woken = await store.tasks.wake(10)
    taken = await claim_one(store)
    assert (taken.id, woken.queue_ids) == (ids[3], (taken.queue_id,))


async def test_unclaimed_admitted_tasks_do_not_accumulate_into_a_larger_burst(store, clock):
    await rate(store, 1.0, 2)
    await put_keyed(store, 10)
    for _ in range(20):
        await clock.advance(1_000)
        await store.tasks.wake(10)
    found = await limit(store)
    assert (found.admitted, found.unclaimed, found.waiting) == (2, 2, 8)
    assert len(await claim(store)) == 2
    await store.tasks.wake(10)
    assert await claim(store) == []


async def test_handlers_with_the_same_key_share_its_rate(store):
    await rate(store, 1.0, 3)
    await put(store, *[new_task(queue, limit_key=KEY) for queue in (WORK, OTHER, WORK, OTHER)])
    assert len(await claim(store, WORK)) + len(await claim(store, OTHER)) == 3


async def test_an_end_makes_no_room_under_a_rate(store):
    await rate(store, 1.0, 1)
    await put_keyed(store, 2)
    await settle(store, (await claim_one(store)).claim, succeed())
    assert await claim(store) == []


async def test_a_maximum_and_a_rate_apply_together(store, clock):
    await store.operators.set_limit(DEFAULT_NAMESPACE, KEY, 2)
    await rate(store, 1.0, 5)
    await put_keyed(store, 10)
    first = await claim(store)
    assert len(first) == 2
    assert (await store.tasks.wake(10)).next_for == MINUTE  # only an end, or the end of a lease, lets another start
    for task in first:
        await settle(store, task.claim, succeed())
    assert len(await claim(store)) == 2
    found = await limit(store)
    assert (found.max_running, found.by_operator, found.rate, found.burst) == (2, True, 1.0, 5)


async def test_each_part_of_a_limit_can_be_removed_alone(store):
    await store.operators.set_limit(DEFAULT_NAMESPACE, KEY, 1)
    await rate(store, 1.0, 3)
    await put_keyed(store, 5)
    await store.operators.set_limit(DEFAULT_NAMESPACE, KEY, None)
    found = await limit(store)
    assert (found.max_running, found.by_operator, found.rate) == (None, False, 1.0)
    assert len(await claim(store)) == 3
    assert len(await rate(store, None)) == 1
    assert await limit(store) is None
    assert len(await claim(store)) == 2


async def test_a_changed_rate_applies_to_waiting_tasks_immediately(store, clock):
    await rate(store, 0.001, 1)
    await put_keyed(store, 10)
    assert len(await claim(store)) == 1
    await rate(store, 10.0, 5)
    assert (await store.tasks.wake(10)).next_for == 100
    await clock.advance(100)
    await store.tasks.wake(10)
    assert len(await claim(store)) == 1
    await clock.advance(1_000)
    await store.tasks.wake(10)
    await rate(store, 1.0, 2)  # three of five admitted tasks wait again
    found = await limit(store)
    assert (found.unclaimed, found.waiting) == (2, 6)


async def test_a_larger_burst_gives_no_tokens_for_the_past(store, clock):
    await rate(store, 10.0, 1)
    await put_keyed(store, 20)
    await clock.advance(60_000)
    await rate(store, 10.0, 10)
    assert len(await claim(store)) == 1
    await clock.advance(500)
    await store.tasks.wake(10)
    assert len(await claim(store)) == 5


async def test_a_clock_that_was_ahead_does_not_stop_a_key(store, clock):
    await rate(store, 10.0, 1)
    await put_keyed(store, 5)
    await clock.advance(3_600_000)
    await store.tasks.wake(10)
    assert len(await claim(store)) == 1
    await clock.advance(-3_600_000)
    assert (await store.tasks.wake(10)).next_for == 100
    assert await claim(store) == []
    await clock.advance(100)
    await store.tasks.wake(10)
    assert len(await claim(store)) == 1


async def test_a_rate_set_later_also_limits_unclaimed_tasks(store):
    await put_keyed(store, 5)
    await rate(store, 1.0, 2)
    assert (await limit(store)).waiting == 3
    assert len(await claim(store)) == 2


async def test_a_callers_maximum_joins_an_operators_rate(store):
    await rate(store, 1.0, 3)
    await put(store, *[new_task(limit_key=KEY, limit=2) for _ in range(5)])
    found = await limit(store)
    assert (found.max_running, found.by_operator, found.admitted) == (2, False, 2)


async def test_tasks_set_the_rate_of_their_key_unless_an_operator_has_set_it(store, clock):
    def paced(per_second: float, burst: int) -> list[NewTask]:
        return [new_task(limit_key=KEY, limits=((KEY, TaskLimit(3, per_second, burst)),)) for _ in range(6)]

    await put(store, *paced(2.0, 2))
    assert len(await claim(store)) == 2
    await clock.advance(500)
    await store.tasks.wake(10)
    assert len(await claim(store)) == 1
    assert (await limit(store)).max_running == 3
    await put(store, *paced(4.0, 1))
    assert ((await limit(store)).rate, (await limit(store)).burst) == (4.0, 1)
    await rate(store, 1.0, 5)
    await put(store, *paced(2.0, 2))
    assert ((await limit(store)).rate, (await limit(store)).burst) == (1.0, 5)
    await rate(store, None)
    await put(store, *paced(2.0, 2))
    assert (await limit(store)).rate == 2.0


async def test_unclaimed_tasks_do_not_use_up_the_rate_of_other_handlers(store, clock):
    await rate(store, 1.0, 2)
    await put(store, *[new_task(OTHER, limit_key=KEY) for _ in range(5)])  # no worker has this handler
    mine = await put_keyed(store, 3)
    assert await claim(store) == []
    taken: list[str] = []
    for _ in range(20):
        await clock.advance(1_000)
        await store.tasks.wake(100)
        taken += in_order(await claim(store))
    assert taken == mine
    assert (await limit(store)).waiting >= 3


async def test_unclaimed_tasks_of_a_higher_priority_do_not_use_up_the_rate_of_other_handlers(store, clock):
    await rate(store, 1.0, 2)
    unclaimed = [OTHER, OTHER._replace(name="third"), OTHER._replace(name="fourth")]  # no worker has these handlers
    for queue in unclaimed:
        await put(store, *[new_task(queue, limit_key=KEY, priority=-1) for _ in range(5)])
    mine = await put_keyed(store, 6)
    starts: list[tuple[int, str]] = []
    for _ in range(60):
        await clock.advance(1_000)
        await store.tasks.wake(100)
        starts += [(clock.now(), task.id) for task in await claim(store)]
    assert [task_id for _, task_id in starts] == mine
    for place, (first_at, _) in enumerate(starts):
        assert all(after + 1 <= 2 + (at - first_at) / 1000 for after, (at, _) in enumerate(starts[place:]))
    assert await claim(store, *unclaimed)  # nor are they forgotten


async def test_tasks_keep_their_order_while_all_workers_are_busy(store, clock):
    await rate(store, 1.0, 2)
    ids = await put_keyed(store, 6)
    for _ in range(10):
        await clock.advance(4_000)
        await store.tasks.wake(100)
    assert in_order(await claim(store)) == ids[:2]
    await clock.advance(2_000)
    await store.tasks.wake(100)
    assert in_order(await claim(store)) == ids[2:4]


async def test_unclaimed_tasks_cause_only_occasional_wake_ups(store, clock):
    await rate(store, 50.0, 50)
    await put_keyed(store, 120)
    began, wakes = clock.now(), 0
    while clock.now() - began < 60_000:
        woken = await store.tasks.wake(100)
        wakes += 1
        await clock.advance(woken.next_for)
    assert wakes <= 15
    assert (await limit(store)).unclaimed == 50
    await store.operators.set_limit(DEFAULT_NAMESPACE, KEY, 50)  # also when the maximum is reached
    assert (await store.tasks.wake(100)).next_for > 1_000
    assert len(await claim(store, limit=100)) == 50


async def test_retries_takeovers_and_redrives_count_as_starts(store, clock):
    await rate(store, 0.001, 4)
    await put_keyed(store, 1)
    task = await claim_one(store)
    await settle(store, task.claim, requeue(task, "retry"))
    await claim_one(store, lease_for=1_000)
    await clock.advance(1_000)
    await store.tasks.wake(10)
    task = await claim_one(store)
    await settle(store, task.claim, fail())
    await commit_one(store, seen(await get(store, task.id)), Redrive("requeue", "ann"))
    assert len(await claim(store)) == 1
    await put_keyed(store, 1)
    assert await claim(store) == []


async def test_a_preclaimed_task_takes_a_token(store):
    await rate(store, 0.001, 1)
    first, second = [new_task(limit_key=KEY, preclaimed=Preclaimed("owner-1", MINUTE)) for _ in range(2)]
    await put(store, first)
    await put(store, second)
    assert [(await get(store, task.id)).claim_version for task in (first, second)] == [1, 0]


async def test_a_handlers_key_is_that_of_its_tasks_without_one(store):
    await put(store, new_task(), new_task())
    await rate(store, 0.001, 3)
    await store.operators.set_handler_key(DEFAULT_NAMESPACE, "work", KEY)
    await store.operators.set_handler_key(DEFAULT_NAMESPACE, "other", KEY)
    assert await store.operators.list_handler_keys(DEFAULT_NAMESPACE) == {"other": KEY, "work": KEY}
    slow = OTHER._replace(task_list="slow")  # a queue that does not exist yet
    await put(store, new_task(limit_key="own"), *[new_task(slow) for _ in range(3)])
    taken = await claim(store) + await claim(store, slow)
    assert [task.limit_key for task in taken].count(KEY) == 3
    assert [task.limit_key for task in taken].count("own") == 1
    await store.operators.set_handler_key(DEFAULT_NAMESPACE, "work", None)
    await put_one(store)
    assert (await claim_one(store)).limit_key is None


async def test_a_handlers_key_is_found_by_its_short_name_too(store):
    qualified = [WORK._replace(name=name) for name in ("billing.Charge", "shop.Charge", "shop.Recharge")]
    await put(store, new_task(qualified[0]))
    await store.operators.set_handler_key(DEFAULT_NAMESPACE, "Charge", KEY)
    await store.operators.set_handler_key(DEFAULT_NAMESPACE, "shop.Charge", "own")
    await put(store, *map(new_task, qualified))
    keys = {rule.queue.name: rule.limit_key for rule in await store.operators.list_queue_rules()}
    assert keys == {"billing.Charge": KEY, "shop.Charge": "own", "shop.Recharge": None}
    assert [task.limit_key for task in await claim(store, qualified[0])] == [KEY, KEY]


async def test_a_handlers_own_key_replaces_that_of_its_limit(store):
    await store.operators.set_limit(DEFAULT_NAMESPACE, "handler:work", 1)
    await put(store, *[new_task() for _ in range(3)])
    await store.operators.set_handler_key(DEFAULT_NAMESPACE, "work", KEY)
    assert {task.limit_key for task in await claim(store)} == {KEY}
    await store.operators.set_handler_key(DEFAULT_NAMESPACE, "work", None)
    (rule,) = await store.operators.list_queue_rules()
    assert rule.limit_key == "handler:work"


async def test_a_requeued_task_waits_for_the_key_that_it_is_given_and_gives_it_back(store):
    await rate(store, 0.001, 2)
    await store.operators.set_limit(DEFAULT_NAMESPACE, KEY, 1)
    await put_one(store)
    task = await claim_one(store)
    await store.commit([Unit(task.claim, requeue(task), rows=(LimitTask(task.id, KEY),))])
    task = await claim_one(store)
    assert task.limit_key == KEY
    (other,) = await put_keyed(store, 1)
    assert await claim(store) == []
    (answer,) = await store.commit([Unit(task.claim, None, rows=(LimitTask(task.id, None),))])
    assert (answer.verdict, answer.queue_ids) == (Verdict.DONE, (task.queue_id,))
    assert (await claim_one(store)).id == other
    kept = await get(store, task.id)
    assert (kept.limit_key, kept.blocked_by, kept.owner_id) == (None, 0, "owner-1")
    await store.commit([Unit(task.claim, requeue(task), rows=(LimitTask(task.id, KEY),))])
    assert (await get(store, task.id)).blocked_by == BlockReason.OVER_LIMIT


async def test_no_interval_has_more_starts_than_the_rate_allows(store, clock):
    rng = random.Random(7)
    per_second, burst, began = 3.0, 2, clock.now()
    await rate(store, per_second, burst)
    starts: list[int] = []
    held: list[Task] = []
    for _ in range(200):
        match rng.choice(["put", "claim", "claim", "claim", "settle", "advance", "advance", "idle"]):
            case "put":
                await put(store, *[new_task(rng.choice((WORK, OTHER)), limit_key=KEY) for _ in range(rng.randint(1, 4))])
            case "claim":
                taken = await claim(store, WORK, OTHER, limit=rng.randint(1, 3), lease_for=rng.choice((800, MINUTE)))
                starts += [clock.now()] * len(taken)
                held += taken
            case "settle" if held:
                task = held.pop(rng.randrange(len(held)))
                await settle(store, task.claim, rng.choice((succeed(), requeue(task, "retry"), requeue(task, delay=300))))
            case "advance":
                await clock.advance(rng.choice((1, 90, 333, 700)))
                await store.tasks.wake(100)
            case "idle" if rng.random() < 0.2:
                await clock.advance(5_000)
                await store.tasks.wake(100)
    assert len(starts) > 20
    for first, began_at in enumerate(starts):
        for last in range(first, len(starts)):
            assert last - first + 1 <= burst + per_second * (starts[last] - began_at) / 1000 + 0.001
    await put_keyed(store, 1)  # no token is lost either: after a while, the next task starts
    await clock.advance(10_000)
    await store.tasks.wake(100)
    assert await claim(store, WORK, OTHER)
    assert clock.now() > began


async def test_concurrent_claimers_on_several_stores_together_take_no_more_than_the_rate_of_a_key_allows(database, store):
    stores = [store, *[await database.open_store() for _ in range(3)]]
    await rate(store, 0.001, 10)
    await put(store, *[new_task(queue, limit_key=KEY) for queue in (WORK, OTHER) for _ in range(20)])
    claims = [claim(stores[n % 4], (WORK, OTHER)[n % 2], owner=f"o{n}", limit=3) for n in range(12)]
    wakes = [other.tasks.wake(100) for other in stores]
    taken = await asyncio.gather(asyncio.gather(*claims), asyncio.gather(*wakes))
    rest = [await claim(store, WORK, OTHER), await claim(store, WORK, OTHER)]
    assert sum(map(len, [*taken[0], *rest])) == 10
