"""How a worker takes work: room, groups, threads; and how it lets go of what is no longer its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from tests.limits import BOUND
from tests.workers.harness import Workshop, turns, until

from treadle.api.tasks import TaskSpec
from treadle.kernel.queue.decide import TAKEOVER_LIMIT
from treadle.kernel.telemetry.events import LeaseLost, LoopError, ResultDropped, StoreBack, StoreTrouble, TaskSettled, TaskTaken
from treadle.model.errors import InvalidInput, NotFound, StoreUnavailable
from treadle.model.names import QueueKey
from treadle.model.states import TaskState
from treadle.model.tasks import Task
from treadle.workers.context import Context
from treadle.workers.loop import FIRST_CLAIM, QueueGroup
from treadle.workers.resources import WorkerOptions
from treadle_conformance.task_steps import claim, new_task, put

MakeShop = Callable[..., Workshop]


class Gate:
    """Handlers that say when they start and end when they are told."""

    def __init__(self) -> None:
        self.running: list[str] = []
        self.most = 0
        self._open = asyncio.Event()

    async def __call__(self, payload: Any, ctx: Context) -> None:
        self.running.append(ctx.task_id)
        self.most = max(self.most, len(self.running))
        try:
            await self._open.wait()
        finally:
            self.running.remove(ctx.task_id)

    def open(self) -> None:
        self._open.set()


class ThreadGate:
    """The same in threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.running = 0
        self.most = 0
        self.opened = threading.Event()

    def __call__(self, payload: Any) -> None:
        with self._lock:
            self.running += 1
            self.most = max(self.most, self.running)
        self.opened.wait(BOUND)
        with self._lock:
            self.running -= 1


async def enqueue_many(shop: Workshop, count: int, name: str = "work") -> list[str]:
    return [done.id for done in await shop.queue.enqueue([TaskSpec(name=name) for _ in range(count)])]


async def all_settled(shop: Workshop, count: int) -> None:
    await shop.events.heard(TaskSettled, count)


async def test_the_next_claim_is_sent_before_the_handlers_of_the_last_one_run(
    make_shop: MakeShop, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = make_shop(concurrency=1000)
    seen: list[str] = []
    store_claim = shop.store.tasks.claim

    async def send(*args: Any) -> list[Task]:
        seen.append("claim")
        return await store_claim(*args)

    @shop.handler()
    async def work(payload: Any) -> None:
        seen.append("handler")

    monkeypatch.setattr(shop.store.tasks, "claim", send)
    await enqueue_many(shop, 2 * FIRST_CLAIM)
    shop.start()
    await all_settled(shop, 2 * FIRST_CLAIM)
    assert seen[:3] == ["claim", "claim", "handler"]


@pytest.mark.parametrize("field", ["concurrency", "threads", "processes"])
def test_a_worker_without_room_is_refused(field: str) -> None:
    with pytest.raises(InvalidInput):
        WorkerOptions(**{field: 0})


async def test_a_worker_claims_no_more_than_its_free_slots(make_shop: MakeShop) -> None:
    shop, gate = make_shop(concurrency=5), Gate()
    shop.handler()(gate)
    ids = await enqueue_many(shop, 12)
    shop.start()
    await shop.events.heard(TaskTaken, 5)
    await turns()
    assert sorted(gate.running) == sorted(ids[:5])
    assert shop.worker.running == 5
    gate.open()
    await all_settled(shop, 12)
    assert gate.most == 5


async def test_a_handlers_own_concurrency_leaves_room_for_others(make_shop: MakeShop) -> None:
    shop, narrow, wide = make_shop(concurrency=10), Gate(), Gate()
    shop.handler("narrow", concurrency=2)(narrow)
    shop.handler("wide")(wide)
    await enqueue_many(shop, 6, "narrow")
    await enqueue_many(shop, 6, "wide")
    shop.start()
    await shop.events.heard(TaskTaken, 8)
    await turns()
    assert (len(narrow.running), len(wide.running)) == (2, 6)
    narrow.open()
    wide.open()
    await all_settled(shop, 12)
    assert narrow.most == 2


async def test_no_group_claims_all_freed_slots(make_shop: MakeShop) -> None:
    shop = make_shop(concurrency=1)
    order: list[str] = []

    async def note(payload: Any, ctx: Context) -> None:
        order.append(ctx.task.name)

    shop.handler("busy")(note)
    shop.handler("rare", concurrency=1)(note)
    await enqueue_many(shop, 10, "busy")
    await enqueue_many(shop, 1, "rare")
    shop.start()
    await all_settled(shop, 11)
    assert order.index("rare") < 5


async def test_the_thread_limit_applies_across_sync_handlers(make_shop: MakeShop) -> None:
    shop, gate = make_shop(threads=3), ThreadGate()
    shop.handler("one")(gate)
    shop.handler("two", concurrency=3)(gate)
    await enqueue_many(shop, 5, "one")
    await enqueue_many(shop, 5, "two")
    shop.start()
    await shop.events.heard(TaskTaken, 3)
    await turns()
    assert shop.worker.running == 3
    gate.opened.set()
    await all_settled(shop, 10)
    assert gate.most <= 3


async def test_an_abandoned_thread_still_counts(make_shop: MakeShop) -> None:
    shop, gate = make_shop(threads=2), ThreadGate()
    shop.handler("stuck", timeout=0.5)(gate)
    shop.handler("fine")(lambda payload: None)
    (stuck,) = await enqueue_many(shop, 1, "stuck")
    shop.start()
    assert (await shop.settled(stuck)).error_code == "timeout"
    assert shop.executor.abandoned(["stuck"]) == 1
    gate_2 = ThreadGate()
    shop.handler("slow")(gate_2)
    await enqueue_many(shop, 3, "slow")
    await until(lambda: gate_2.running == 1)
    await turns()
    assert (gate_2.running, shop.worker.running) == (1, 1)
    gate.opened.set()
    gate_2.opened.set()
    await shop.events.heard(TaskSettled, 3, name="slow")


async def test_it_serves_its_own_lists_namespace_and_names_only(make_shop: MakeShop) -> None:
    shop, seen = make_shop(task_lists=("mail", "print")), list[str]()

    @shop.handler("send")
    async def send(payload: Any, ctx: Context) -> None:
        seen.append(ctx.task.task_list)

    others = [await shop.enqueue("send"), await shop.enqueue("receive", task_list="mail")]
    mine = [await shop.enqueue("send", task_list="mail"), await shop.enqueue("post.send", task_list="print")]
    shop.start()
    for task_id in mine:
        assert (await shop.settled(task_id)).state == TaskState.COMPLETED
    assert sorted(seen) == ["mail", "print"]
    for task_id in others:
        assert (await shop.get(task_id)).claim_version == 0


async def test_a_new_queue_is_discovered(shop: Workshop) -> None:
    shop.start()
    await asyncio.sleep(0)

    @shop.handler("late")
    async def late(payload: Any) -> None: ...

    task_id = await shop.enqueue("late")
    assert (await shop.settled(task_id)).state == TaskState.COMPLETED


async def test_smaller_priorities_are_claimed_first_then_the_oldest(make_shop: MakeShop) -> None:
    shop, order = make_shop(concurrency=1), list[str]()

    @shop.handler()
    async def work(payload: Any, ctx: Context) -> None:
        order.append(ctx.task_id)

    ids = [await shop.enqueue(priority=priority) for priority in (5, 0, -3, 0, 5)]
    shop.start()
    await all_settled(shop, 5)
    assert order == [ids[2], ids[1], ids[3], ids[0], ids[4]]


async def test_canceling_stops_an_async_handler_immediately_and_frees_its_slot(make_shop: MakeShop) -> None:
    shop, gate = make_shop(concurrency=1), Gate()
    shop.handler()(gate)
    task_id = await shop.enqueue()
    shop.start()
    await shop.events.heard(TaskTaken)
    await until(lambda: bool(gate.running))
    await shop.queue.cancel(task_id, actor="ann")
    await until(lambda: not shop.worker.running)
    assert gate.running == []
    task = await shop.get(task_id)
    assert (task.state, task.actor) == (TaskState.CANCELED, "ann")
    assert len(shop.events.of(LeaseLost)) == 1
    assert shop.events.of(TaskSettled) == []


async def test_a_task_canceled_while_it_is_claimed_does_not_run(shop: Workshop) -> None:
    @shop.handler()
    async def work(payload: Any) -> None:
        raise AssertionError("must not run")

    task_id = await shop.enqueue()
    await shop.worker._claimer.refresh()
    assert await shop.worker._claimer.claim(shop.worker._start)
    assert shop.worker.running == 1
    shop.worker.stop_fenced([task_id])
    await until(lambda: shop.worker.running == 0)
    assert shop.events.of(TaskTaken) == []
    assert shop.events.of(TaskSettled) == []


async def test_a_lost_claim_drops_the_outcome_of_its_handler(shop: Workshop) -> None:
    swallowed = asyncio.Event()

    @shop.handler()
    async def work(payload: Any, ctx: Context) -> dict[str, Any]:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            swallowed.set()
        return {"late": ctx.cancelled}

    task_id = await shop.enqueue()
    shop.start()
    await shop.events.heard(TaskTaken)
    await until(lambda: shop.worker._attempts[task_id].started)
    shop.worker.lose(shop.worker._attempts[task_id].context.token, "the test says so")
    await swallowed.wait()
    await until(lambda: not shop.worker.running)
    assert (await shop.get(task_id)).claim_version == 1
    assert shop.events.of(TaskSettled) == []


async def test_a_late_result_is_refused_and_reported(shop: Workshop) -> None:
    gate = Gate()
    shop.handler()(gate)
    task_id = await shop.enqueue()
    shop.start()
    await shop.events.heard(TaskTaken)
    shop.clock.advance(60)
    await shop.store.tasks.wake(10)  # nobody told the worker
    gate.open()
    dropped = await shop.events.heard(ResultDropped)
    assert (dropped.task_id, dropped.transition) == (task_id, "succeed")
    assert (await shop.get(task_id)).state == TaskState.PENDING


async def test_a_worker_that_takes_a_task_again_keeps_the_two_claims_apart(shop: Workshop) -> None:
    """The first handler clings to its task after the lease ran out; the same worker takes it anew."""
    first_may_end, second_may_end = asyncio.Event(), asyncio.Event()

    @shop.handler()
    async def work(payload: Any, ctx: Context) -> dict[str, Any]:
        if ctx.fencing_token == 1:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                await first_may_end.wait()
            return {"by": 1}
        await second_may_end.wait()
        return {"by": 2}

    task_id = await shop.enqueue()
    shop.start()
    await shop.events.heard(TaskTaken)
    first = shop.worker._attempts[task_id].context.token
    assert await shop.wake(60) == 1
    await shop.events.heard(TaskTaken, 2)
    assert shop.worker.running == 2
    shop.worker.lose(first, "told late")
    first_may_end.set()
    await until(lambda: shop.worker.running == 1)
    second_may_end.set()
    task = await shop.settled(task_id)
    assert (task.result, task.claim_version) == ('{"by":2}', 2)
    await until(lambda: shop.worker.running == 0)
    assert shop.events.of(LoopError) == []


async def test_two_workers_never_run_the_same_task(make_shop: MakeShop) -> None:
    shop, runs = make_shop(concurrency=7), list[str]()
    other = shop.make_worker("owner-2", concurrency=3)

    @shop.handler()
    async def work(payload: Any, ctx: Context) -> None:
        runs.append(ctx.task_id)
        await asyncio.sleep(0)

    ids = await enqueue_many(shop, 200)
    shop.start()
    shop.start(other)
    await all_settled(shop, 200)
    assert sorted(runs) == sorted(ids)


async def test_store_trouble_is_survived_and_reported_once(shop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    @shop.handler()
    async def work(payload: Any) -> None: ...

    task_id = await shop.enqueue()

    async def away(*arguments: Any) -> Any:
        raise StoreUnavailable("away")

    with monkeypatch.context() as patch:
        patch.setattr(shop.store.tasks, "list_queues", away)
        shop.start()
        for _ in range(3):
            await until(lambda: shop.clock.sleeping > 0)
            shop.clock.advance(1)
    await until(lambda: shop.clock.sleeping > 0 or bool(shop.events.of(StoreBack)))
    shop.clock.advance(1)
    assert (await shop.settled(task_id)).state == TaskState.COMPLETED
    assert len(shop.events.of(StoreTrouble)) == 1
    assert len(shop.events.of(StoreBack)) == 1


async def test_claims_with_a_lost_answer_count_neither_as_attempts_nor_as_takeovers(
    shop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate()
    shop.handler("held")(gate)

    @shop.handler()
    async def work(payload: Any) -> None: ...

    held_id = await shop.enqueue("held")
    shop.start()
    await shop.events.heard(TaskTaken)
    make_claim, lost = shop.store.tasks.claim, list[str]()

    async def claim_unheard(*arguments: Any) -> list[Task]:
        if found := await make_claim(*arguments):
            lost.extend(task.id for task in found)
            raise StoreUnavailable("The connection broke before the answer came.")
        return found

    shop.clock.advance(1)
    with monkeypatch.context() as patch:
        patch.setattr(shop.store.tasks, "claim", claim_unheard)
        task_id = await shop.enqueue()
        for number in range(1, TAKEOVER_LIMIT + 2):
            await until(lambda number=number: len(lost) == number and shop.clock.sleeping > 0)
            if number <= TAKEOVER_LIMIT:
                shop.clock.advance(1)
    shop.clock.advance(1)
    task = await shop.settled(task_id)
    assert (task.state, task.attempt, task.takeovers, set(lost)) == (TaskState.COMPLETED, 1, 0, {task_id})
    assert await shop.transitions(task_id) == ["release"] * len(lost) + ["succeed"]
    gate.open()
    held = await shop.settled(held_id)
    assert (held.state, held.claim_version, await shop.transitions(held_id)) == (TaskState.COMPLETED, 1, ["succeed"])


@pytest.mark.parametrize(
    ("trouble", "transitions"),
    [(StoreUnavailable("away"), ["release", "succeed"]), (NotFound("pruned"), ["fail"]), (None, ["succeed"])],
)
async def test_a_big_payload_is_read_before_the_handler_runs(
    shop: Workshop, trouble: Exception | None, transitions: list[str]
) -> None:
    got: list[Any] = []

    async def open_payload(text: str) -> str:
        nonlocal trouble
        if trouble is not None:
            error, trouble = trouble, None
            raise error
        return '{"big":true}'

    @shop.handler()
    async def work(payload: Any) -> None:
        got.append(payload)

    shop.services.open_payload = open_payload
    task = new_task(payload='@{"digest":"d"}')
    await put(shop.store, task)
    shop.start()
    for number in range(len(transitions)):
        await shop.wake(number)
        await shop.events.heard(TaskSettled, number + 1, task_id=task.id)
    assert await shop.transitions(task.id) == transitions
    assert got == ([{"big": True}] if transitions[-1] == "succeed" else [])


async def test_a_signal_for_foreign_queues_does_not_wake_the_worker(shop: Workshop) -> None:
    await shop.enqueue("foreign")
    queues = await shop.store.tasks.queue_ids([QueueKey("default", "handler", "default", "foreign")])
    await shop.worker._claimer.refresh()
    shop.worker._signal.clear()
    shop.worker.wake(tuple(queues.values()))
    assert not shop.worker._signal.is_set()
    shop.worker.wake(())
    assert shop.worker._signal.is_set()
    assert await claim(shop.store, *queues) != []


async def test_a_signal_during_a_refresh_of_queues_is_not_lost(make_shop: MakeShop, monkeypatch: pytest.MonkeyPatch) -> None:
    shop, looking, go_on = make_shop(poll_every=3600), asyncio.Event(), asyncio.Event()
    list_queues = shop.store.tasks.list_queues

    async def slow() -> Any:
        queues = await list_queues()
        looking.set()
        await go_on.wait()
        return queues

    @shop.handler("late")
    async def late(payload: Any) -> None: ...

    monkeypatch.setattr(shop.store.tasks, "list_queues", slow)
    shop.start()
    await looking.wait()
    task_id = await shop.enqueue("late")
    go_on.set()
    assert (await shop.settled(task_id)).state == TaskState.COMPLETED


async def test_a_worker_stopped_during_a_claim_does_not_wait_for_more(make_shop: MakeShop, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker does not wait for its next poll, which is an hour away."""
    shop, looking, go_on = make_shop(poll_every=3600), asyncio.Event(), asyncio.Event()

    async def slow() -> Any:
        looking.set()
        await go_on.wait()
        return {}

    monkeypatch.setattr(shop.store.tasks, "list_queues", slow)
    running = asyncio.ensure_future(shop.worker.run())
    await looking.wait()
    shop.worker.stop_claiming()
    go_on.set()
    await asyncio.wait_for(running, BOUND)


async def test_claims_begin_small_and_double_while_they_are_full(make_shop: MakeShop) -> None:
    shop = make_shop(concurrency=2000)
    sizes: list[int] = []

    @shop.handler()
    async def work(payload: Any) -> None:
        pass

    def start(tasks: Sequence[Task], group: QueueGroup, claimed_at: float) -> None:
        sizes.append(len(tasks))

    await enqueue_many(shop, 7 * FIRST_CLAIM + 1)
    await shop.worker._claimer.refresh()
    while await shop.worker._claimer.claim(start):
        pass
    assert sizes == [FIRST_CLAIM, 2 * FIRST_CLAIM, 4 * FIRST_CLAIM, 1]
    await enqueue_many(shop, 2 * FIRST_CLAIM)
    assert await shop.worker._claimer.claim(start)
    assert sizes[-1] == FIRST_CLAIM
