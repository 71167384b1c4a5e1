"""Claims that wait: each task goes to one, in the order in which they came, with few looks at the store, and none is lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.contract.databases import Database, SqliteMemory, StoreClock
from tests.contract.protocol import Bench, open_bench, until
from tests.errors import raises_code
from tests.limits import BOUND

from treadle.model.errors import StoreUnavailable


@pytest.fixture
async def shared(database: Database, clock: StoreClock) -> AsyncIterator[Bench]:
    """A bench on each store."""
    async with open_bench(database, clock) as made:
        yield made


@pytest.fixture
async def bench(request: pytest.FixtureRequest, tmp_path: Any) -> AsyncIterator[Bench]:
    """A bench on the store in memory, for what has nothing to do with stores."""
    database = SqliteMemory(request, tmp_path)
    async with open_bench(database, database.clock) as made:
        yield made
    await database.close()


async def test_a_waiting_claim_receives_an_enqueued_task(shared: Bench) -> None:
    worker_id = await shared.worker("job")
    waiting = shared.waiting_claim(worker_id)
    await shared.waits()
    task_id = await shared.put("job")  # the first of its queue
    (claimed,) = await asyncio.wait_for(waiting, BOUND)
    assert claimed.task.id == task_id


async def test_many_waiting_claims_share_tasks_exactly_once_with_few_queries(shared: Bench) -> None:
    workers = [await shared.worker("job") for _ in range(200)]
    waiting = [shared.waiting_claim(worker_id) for worker_id in workers]
    await shared.waits(200)
    before = shared.claims
    ids = [await shared.put("job", {"n": n}) for n in range(50)]
    await until(lambda: sum(each.done() for each in waiting) == 50)
    await shared.waits(150)
    # each task is taken by one look, each signal may cost one that finds nothing, and two look at once on some stores
    assert shared.claims - before <= 3 * 50
    more = [shared.put("job", {"n": n}) for n in range(50, 200)]
    ids += await asyncio.gather(*more)
    claimed = await asyncio.wait_for(asyncio.gather(*waiting), BOUND)
    assert sorted(each.task.id for found in claimed for each in found) == sorted(ids)
    assert [each.task.owner_id for found in claimed for each in found] == workers


async def test_claims_that_get_tasks_do_not_list_the_queues_again(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    worker_id = await bench.worker("job")
    for n in range(30):
        await bench.put("job", {"n": n})
    await bench.one(worker_id)
    store, listed = bench.engine.kernel.store, list[None]()
    list_queues = store.tasks.list_queues

    async def counted() -> Any:
        listed.append(None)
        return await list_queues()

    monkeypatch.setattr(store.tasks, "list_queues", counted)

    async def claim_ten() -> None:
        for _ in range(10):
            await bench.one(worker_id)

    await asyncio.wait_for(asyncio.gather(claim_ten(), claim_ten()), BOUND)
    assert not listed
    other = await bench.worker("other")
    await bench.put("other")
    assert (await bench.one(other)).task.name == "other"  # a queue that came later


async def test_waiting_claims_are_served_in_order_of_arrival(bench: Bench) -> None:
    workers = [await bench.worker("job") for _ in range(20)]
    waiting = []
    for worker_id in workers:
        waiting.append(bench.waiting_claim(worker_id))
        await bench.waits(len(waiting))
    order: list[str] = []
    for worker_id, each in zip(workers, waiting, strict=True):
        each.add_done_callback(lambda _, worker_id=worker_id: order.append(worker_id))
    for _ in workers:
        await bench.put("job")
    await asyncio.wait_for(asyncio.gather(*waiting), BOUND)
    assert order == workers


async def test_claims_of_one_worker_share_a_query_and_receive_its_tasks_in_order(shared: Bench) -> None:
    worker_id, other = await shared.worker("job"), await shared.worker("job")
    ids = [await shared.put("job", {"n": n}) for n in range(6)]
    limits = (2, 1, 2)
    claiming = [shared.workers.claim(worker_id, limit=limit) for limit in limits]
    found = await asyncio.wait_for(asyncio.gather(*claiming, shared.workers.claim(other)), BOUND)
    assert [[each.task.id for each in tasks] for tasks in found] == [ids[:2], ids[2:3], ids[3:5], ids[5:]]
    assert [each.task.owner_id for tasks in found for each in tasks] == [worker_id] * 5 + [other]
    assert shared.claims == 2


async def test_claims_that_arrived_alternately_do_not_overtake_each_other(bench: Bench) -> None:
    ada, bob = await bench.worker("job"), await bench.worker("job")
    await bench.put("job")
    await bench.put("job")
    found = await asyncio.wait_for(asyncio.gather(*(bench.workers.claim(each) for each in (ada, bob, ada))), BOUND)
    assert [[each.task.owner_id for each in tasks] for tasks in found] == [[ada], [bob], []]


async def test_claims_waiting_for_other_tasks_do_not_query_the_store(bench: Bench) -> None:
    await bench.put("other")
    waiting = [bench.waiting_claim(await bench.worker("job")) for _ in range(10)]
    await bench.waits(10)
    before = bench.claims
    for _ in range(5):
        await bench.put("other")
        await bench.waits(10)
    assert bench.claims == before
    await bench.engine.kernel.remote_workers.close()
    assert await asyncio.gather(*waiting) == [[]] * 10


async def test_one_empty_query_answers_all_earlier_claims(bench: Bench) -> None:
    await bench.put("job")
    first = await bench.worker("job")
    await bench.one(first)
    workers = [await bench.worker("job") for _ in range(100)]
    before = bench.claims
    assert await asyncio.gather(*(bench.workers.claim(worker_id) for worker_id in workers)) == [[]] * 100
    assert bench.claims - before <= 3


async def test_delayed_tasks_become_ready_without_a_local_worker_within_a_second(shared: Bench) -> None:
    workers = [await shared.worker("job") for _ in range(5)]
    task_id = await shared.put("job", delay=3)
    waiting = [shared.waiting_claim(worker_id) for worker_id in workers]
    await shared.waits(5)
    before = shared.ticks
    for tenth in range(30):
        assert shared.ticks - before <= tenth // 10 + 1
        await shared.pass_(0.1)
    await shared.pass_until(lambda: any(each.done() for each in waiting))
    found = [claimed for each in waiting if each.done() for claimed in each.result()]
    assert [claimed.task.id for claimed in found] == [task_id]  # two look at once on some stores: the first may not get it
    for each in waiting:
        each.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)


async def test_a_waiting_claim_returns_no_task_at_its_timeout(bench: Bench) -> None:
    worker_id = await bench.worker("job")
    waiting = bench.waiting_claim(worker_id, 30)
    await bench.waits()
    for _ in range(29):
        await bench.pass_(1)
        await bench.waits()
    await bench.pass_(1)
    assert await asyncio.wait_for(waiting, BOUND) == []


async def test_a_worker_that_waits_is_alive(bench: Bench) -> None:
    worker_id = await bench.worker("job")
    waiting = bench.waiting_claim(worker_id, 60)
    await bench.waits()
    for _ in range(50):
        await bench.pass_(1)
        await bench.waits()
    (shown,) = await bench.engine.kernel.reads.list_servers()
    assert shown.state == "running"
    assert bench.now() - shown.heartbeat_at <= 5000
    waiting.cancel()


async def test_a_worker_deregistered_in_another_process_stops_waiting(bench: Bench) -> None:
    from treadle.kernel.store.queries import Touch

    worker_id = await bench.worker("job")
    waiting = bench.waiting_claim(worker_id, 60)
    await bench.waits()
    await bench.engine.kernel.store.servers.touch([Touch(worker_id, state="stopped")])
    await bench.pass_until(waiting.done)
    with raises_code("worker_not_found"):
        await waiting


async def test_a_waiting_claim_gets_a_task_when_its_queue_has_a_token(bench: Bench) -> None:
    await bench.engine.kernel.lists.limit_rate("default", "job", 0.2, 1)
    worker_id = await bench.worker("job")
    for _ in range(2):
        await bench.put("job")
    await bench.one(worker_id)
    waiting = bench.waiting_claim(worker_id, 60)
    await bench.waits()
    for _ in range(4):
        await bench.pass_(1)
        await bench.waits()
    await bench.pass_(1)
    assert len(await asyncio.wait_for(waiting, BOUND)) == 1


async def test_pauses_and_limits_apply_and_their_end_wakes_waiting_claims(bench: Bench) -> None:
    await bench.put("job", limit_key="one", limit=1)
    held = await bench.one(first := await bench.worker("job"))
    await bench.put("job", limit_key="one", limit=1)
    waiting = bench.waiting_claim(await bench.worker("job"))
    await bench.waits()
    await bench.engine.kernel.lists.pause("default")
    await bench.workers.complete(first, held.task.id, held.claim_version)
    await bench.waits()
    assert not waiting.done()
    await bench.engine.kernel.lists.resume("default")
    assert len(await asyncio.wait_for(waiting, BOUND)) == 1


class Prompts:
    """Serves the names of prompts, as an engine with a model does."""

    async def look(self, names: Any) -> None:
        return None

    def find(self, name: str) -> Any:
        return object() if name == "ai.Summarize" else None

    def names(self) -> list[str]:
        return ["ai.Summarize"]


async def test_a_prompt_is_claimed_by_its_exact_name_and_not_by_a_glob(bench: Bench) -> None:
    bench.engine.kernel.registry.fallback = Prompts()
    await bench.put("ai.Summarize")
    assert await bench.workers.claim(await bench.worker("*")) == []
    assert await bench.workers.claim(await bench.worker("ai.*")) == []
    assert len(await bench.workers.claim(await bench.worker("Summarize"))) == 1


async def test_telemetry_reports_claims_and_settlements(bench: Bench) -> None:
    seen: list[Any] = []
    bench.engine.kernel.telemetry.add(seen.append)
    worker_id = await bench.worker("job")
    task_id = await bench.put("job")
    await bench.one(worker_id)
    await bench.pass_(3)
    await bench.workers.complete(worker_id, task_id, 1)
    bench.engine.kernel.telemetry.remove(seen.append)
    told = {type(each).__name__: each for each in seen}
    assert [task.id for task in told["TasksClaimed"].tasks] == [task_id]
    assert (told["AttemptEnded"].transition, told["AttemptEnded"].took) == ("succeed", 3.0)
    assert (told["SettleAnswered"].task_id, told["SettleAnswered"].done) == (task_id, True)
    assert (told["TaskTaken"].task_id, told["TaskSettled"].took_ms) == (task_id, 3000)


async def test_a_store_error_is_raised_to_all_waiting_claims(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    waiting = [bench.waiting_claim(await bench.worker("job")) for _ in range(3)]
    await bench.waits(3)

    async def broken(*_: Any) -> Any:
        raise StoreUnavailable("gone")

    with monkeypatch.context() as patched:
        patched.setattr(bench.engine.kernel.store.tasks, "claim", broken)
        await bench.put("job")
        assert all(isinstance(each, StoreUnavailable) for each in await asyncio.gather(*waiting, return_exceptions=True))
    assert len(await bench.workers.claim(await bench.worker("job"))) == 1


# callers that go away


class Gate:
    """Holds back the answer of the next claim until it is opened."""

    def __init__(self, bench: Bench) -> None:
        self.reached, self.opened = asyncio.Event(), asyncio.Event()
        inner = bench.engine.kernel.store.tasks.claim

        async def claim(*arguments: Any) -> Any:
            tasks = await inner(*arguments)
            if tasks:
                self.reached.set()
                await self.opened.wait()
            return tasks

        bench.engine.kernel.store.tasks.claim = claim  # type: ignore[method-assign]


async def test_a_task_claimed_for_a_disconnected_caller_is_released(shared: Bench) -> None:
    gone, other = await shared.worker("job"), await shared.worker("job")
    task_id = await shared.put("job")
    gate = Gate(shared)
    claiming = shared.waiting_claim(gone)
    await asyncio.wait_for(gate.reached.wait(), BOUND)
    claiming.cancel()
    with pytest.raises(asyncio.CancelledError):
        await claiming
    assert (await shared.task(task_id)).owner_id == gone
    waiting = shared.waiting_claim(other)
    gate.opened.set()
    (claimed,) = await asyncio.wait_for(waiting, BOUND)
    assert (claimed.task.id, claimed.task.takeovers) == (task_id, 0)
    assert await shared.transitions(task_id) == ["release"]


async def test_only_the_task_of_a_disconnected_caller_in_a_shared_claim_is_released(shared: Bench) -> None:
    worker_id = await shared.worker("job")
    ids = [await shared.put("job", {"n": n}) for n in range(2)]
    gate = Gate(shared)
    gone, stays = shared.waiting_claim(worker_id), shared.waiting_claim(worker_id)
    await asyncio.wait_for(gate.reached.wait(), BOUND)
    gone.cancel()
    with pytest.raises(asyncio.CancelledError):
        await gone
    gate.opened.set()
    (claimed,) = await asyncio.wait_for(stays, BOUND)
    assert claimed.task.id == ids[0]
    assert (await shared.one(await shared.worker("job"), wait_for=60)).task.id == ids[1]
    assert [await shared.transitions(each) for each in ids] == [[], ["release"]]


async def test_an_answer_that_a_canceled_caller_never_read_is_released(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = await bench.worker("job")
    claiming = bench.waiting_claim(gone)
    await bench.waits()
    room = bench.workers._waiters
    answer = room._answer

    def answered(*arguments: Any) -> None:
        answer(*arguments)
        claiming.cancel()  # between the answer and its being taken in

    monkeypatch.setattr(room, "_answer", answered)
    task_id = await bench.put("job")
    with pytest.raises(asyncio.CancelledError):
        await claiming
    await until(lambda: not room._errands)
    assert await bench.transitions(task_id) == ["release"]
    assert (await bench.one(await bench.worker("job"))).task.id == task_id


async def test_a_disconnected_caller_leaves_no_waiting_claim(bench: Bench) -> None:
    gone, other = await bench.worker("job"), await bench.worker("job")
    first = bench.waiting_claim(gone)
    await bench.waits()
    second = bench.waiting_claim(other)
    await bench.waits(2)
    first.cancel()
    task_id = await bench.put("job")
    (claimed,) = await asyncio.wait_for(second, BOUND)
    assert (claimed.task.id, claimed.claim_version, await bench.transitions(task_id)) == (task_id, 1, [])


async def test_closing_the_engine_ends_waiting_claims_without_claiming(bench: Bench) -> None:
    task_id = await bench.put("job")
    gate = Gate(bench)
    claiming = bench.waiting_claim(await bench.worker("job"))
    idle = bench.waiting_claim(await bench.worker("nothing"))
    await asyncio.wait_for(gate.reached.wait(), BOUND)
    closing = asyncio.ensure_future(bench.workers.close())
    await asyncio.sleep(0)
    gate.opened.set()
    await asyncio.wait_for(closing, BOUND)
    assert (await claiming, await idle) == ([], [])
    assert (await bench.task(task_id)).owner_id is None
