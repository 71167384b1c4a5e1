"""Batch handlers: one call for many tasks, each of which keeps its own claim, retries and outcome."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from tests.limits import BOUND
from tests.workers.harness import Workshop, until

from treadle import Engine, Failed, Problem, Retry, Waiting
from treadle.kernel.telemetry.events import TaskSettled
from treadle.model.errors import InvalidInput, InvalidPolicy
from treadle.model.states import TaskState
from treadle.model.values import decode
from treadle.workers.context import Context, make_handler

MakeShop = Callable[..., Workshop]


async def _enqueued(shop: Workshop, count: int, **fields: Any) -> list[str]:
    return [await shop.enqueue(payload={"n": number, **fields}) for number in range(count)]


async def _settled(shop: Workshop, ids: list[str]) -> list[Any]:
    return [await shop.settled(task_id) for task_id in ids]


# collecting


@pytest.mark.parametrize("runs_async", [True, False])
async def test_one_call_receives_the_payloads_of_many_tasks(shop: Workshop, runs_async: bool) -> None:
    calls = []

    def double(payloads: list[Any]) -> list[Any]:
        calls.append(len(payloads))
        return [{"doubled": payload["n"] * 2} for payload in payloads]

    async def double_async(payloads: list[Any]) -> list[Any]:
        return double(payloads)

    shop.handler(batch=4, kind="handler")(double_async if runs_async else double)
    ids = await _enqueued(shop, 10)
    shop.start()
    tasks = await _settled(shop, ids)
    assert [decode(task.result) for task in tasks] == [{"doubled": 2 * number} for number in range(10)]
    assert calls == [4, 4, 2]


async def test_a_batch_waits_for_more_tasks_until_it_is_full(shop: Workshop) -> None:
    calls = []

    @shop.handler(batch=3, within=3600, kind="handler")
    async def work(payloads: list[Any]) -> list[Any]:
        calls.append(len(payloads))
        return [None] * len(payloads)

    shop.start()
    ids = await _enqueued(shop, 2)
    await until(lambda: shop.worker.running == 2)
    assert not calls
    await _settled(shop, [*ids, *await _enqueued(shop, 1)])
    assert calls == [3]


async def test_a_batch_that_is_not_full_is_called_after_its_wait(shop: Workshop) -> None:
    @shop.handler(batch=100, within=0.01, kind="handler")
    async def work(payloads: list[Any]) -> list[Any]:
        return [{"size": len(payloads)}] * len(payloads)

    task = await shop.run(payload={})
    assert decode(task.result) == {"size": 1}


async def test_tasks_of_a_batch_have_the_same_key(shop: Workshop) -> None:
    batches = []

    @shop.handler(batch=10, key="customer", kind="handler")
    async def work(payloads: list[Any]) -> list[Any]:
        batches.append([payload.get("customer") for payload in payloads])
        return [None] * len(payloads)

    ids = [*await _enqueued(shop, 3, customer="a"), *await _enqueued(shop, 2, customer="b"), *await _enqueued(shop, 2)]
    shop.start()
    await _settled(shop, ids)
    assert sorted(batches, key=str) == [["a"] * 3, ["b"] * 2, [None] * 2]


async def test_concurrency_counts_batches_and_later_tasks_fill_the_next_one(make_shop: MakeShop) -> None:
    shop, go, calls = make_shop(concurrency=1), asyncio.Event(), []

    @shop.handler(batch=2, concurrency=2, kind="handler")
    async def work(payloads: list[Any]) -> list[Any]:
        calls.append(len(payloads))
        await go.wait()
        return [None] * len(payloads)

    ids = await _enqueued(shop, 5)
    shop.start()
    await until(lambda: bool(calls))
    assert (calls, shop.worker.running) == ([2], 2)  # the worker runs one call at a time
    go.set()
    await _settled(shop, ids)
    assert calls == [2, 2, 1]


# outcomes


async def test_each_item_has_its_own_outcome(shop: Workshop) -> None:
    @shop.handler(batch=10, retry=3, kind="handler")
    async def work(payloads: list[Any]) -> list[Any]:
        return [
            {"ok": True},
            ValueError("bad row"),
            Failed(Problem("too_large", "never")),
            Retry(Problem("busy", "later")),
            Waiting(1000),
            InvalidInput("no"),
            7,
        ]

    ids = await _enqueued(shop, 7)
    shop.start()
    tasks = await _settled(shop, ids)
    assert [task.state for task in tasks] == ["completed", "pending", "failed", "pending", "pending", "pending", "failed"]
    assert [task.failures for task in tasks if task.state == "pending"] == [1, 1, 0, 1]
    assert [task.error_code for task in tasks if task.state == "failed"] == ["too_large", "unexpected_result"]


async def test_an_exception_fails_each_item_as_it_would_a_single_one(shop: Workshop) -> None:
    @shop.handler(batch=10, retry=2, kind="handler")
    async def work(payloads: list[Any]) -> list[Any]:
        raise ConnectionError("down")

    ids = await _enqueued(shop, 3)
    shop.start()
    tasks = await _settled(shop, ids)
    assert {(task.state, task.failures) for task in tasks} == {(TaskState.PENDING, 1)}
    assert all("down" in (event.error or "") for event in shop.events.of(TaskSettled))


@pytest.mark.parametrize("returned", [[{}], [{}, {}, {}], {}, None, "ab"])
async def test_a_result_of_another_length_fails_all_items(shop: Workshop, returned: Any) -> None:
    @shop.handler(batch=10, retry=2, kind="handler")
    async def work(payloads: list[Any]) -> Any:
        return returned

    ids = await _enqueued(shop, 2)
    shop.start()
    tasks = await _settled(shop, ids)
    assert {(task.state, task.error_code) for task in tasks} == {(TaskState.FAILED, "unexpected_result")}


@dataclass
class Text:
    text: str


@dataclass
class Vector:
    numbers: list[float]


async def test_payloads_and_results_have_the_types_of_the_lists_and_a_wrong_one_concerns_its_task_alone(shop: Workshop) -> None:
    @shop.handler(batch=10, kind="handler")
    async def work(texts: list[Text], contexts: list[Context]) -> list[Vector | ValueError | Failed]:
        assert all(isinstance(text, Text) for text in texts)
        assert len(contexts) == len(texts)
        wrong: Any = {"other": 1}
        return [wrong if text.text == "wrong" else Vector([len(text.text)]) for text in texts]

    ids = [await shop.enqueue(payload=payload) for payload in ({"text": "abc"}, {"txt": "abc"}, {"text": "wrong"})]
    shop.start()
    tasks = await _settled(shop, ids)
    assert [task.state for task in tasks] == ["completed", "failed", "failed"]
    assert decode(tasks[0].result) == {"numbers": [3.0]}
    assert [task.error_code for task in tasks[1:]] == ["invalid_payload", "invalid_result"]


async def test_contexts_report_for_their_own_tasks(shop: Workshop) -> None:
    @shop.handler(batch=10, kind="handler")
    def work(payloads: list[Any], contexts: list[Context]) -> list[Any]:
        for ctx in contexts:
            ctx.log("seen")
        return [{"task": ctx.task_id} for ctx in contexts]

    ids = await _enqueued(shop, 3)
    shop.start()
    assert [decode(task.result)["task"] for task in await _settled(shop, ids)] == ids
    assert sorted(line.task_id for line in shop.lines) == sorted(ids)


# interruptions


async def test_a_canceled_item_leaves_the_others_in_their_batch(shop: Workshop) -> None:
    entered, go = asyncio.Event(), asyncio.Event()

    @shop.handler(batch=3, within=3600, kind="handler")
    async def work(payloads: list[Any], contexts: list[Context]) -> list[Any]:
        entered.set()
        await go.wait()
        return [{"canceled": ctx.cancelled} for ctx in contexts]

    shop.start()
    waiting, *rest = await _enqueued(shop, 2)
    await until(lambda: shop.worker.running == 2)
    shop.worker.stop_fenced([waiting])  # while the batch is collected
    await until(lambda: shop.worker.running == 1)
    rest += await _enqueued(shop, 2)
    async with asyncio.timeout(BOUND):
        await entered.wait()
    shop.worker.stop_fenced([rest[0]])  # while the code runs
    await until(lambda: shop.worker.running == 2)
    go.set()
    tasks = await _settled(shop, rest[1:])
    assert [decode(task.result) for task in tasks] == [{"canceled": False}] * 2
    assert not shop.events.of(TaskSettled, task_id=waiting)
    assert not shop.events.of(TaskSettled, task_id=rest[0])


async def test_a_call_without_items_is_canceled(shop: Workshop) -> None:
    entered, stopped = asyncio.Event(), asyncio.Event()

    @shop.handler(batch=2, kind="handler")
    async def work(payloads: list[Any]) -> list[Any]:
        entered.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()
        return []

    ids = await _enqueued(shop, 2)
    shop.start()
    async with asyncio.timeout(BOUND):
        await entered.wait()
        shop.worker.stop_fenced(ids[:1])
        await until(lambda: shop.worker.running == 1)
        assert not stopped.is_set()
        shop.worker.stop_fenced(ids[1:])
        await stopped.wait()


async def test_a_time_limit_is_that_of_each_item(shop: Workshop) -> None:
    @shop.handler(batch=2, retry=2, kind="handler")
    async def work(payloads: list[Any]) -> list[Any]:
        await asyncio.Event().wait()
        return []

    limited, patient = await shop.enqueue(timeout=0.01), await shop.enqueue()
    shop.start()
    assert (await shop.settled(limited)).failures == 1
    assert (await shop.get(patient)).owner_id is not None


@pytest.mark.parametrize("grace", [0.0, BOUND])
async def test_a_stopping_worker_ends_or_releases_the_items(make_shop: MakeShop, grace: float) -> None:
    shop, entered, go = make_shop(grace=grace), asyncio.Event(), asyncio.Event()

    @shop.handler(batch=2, within=0.01, kind="handler")
    async def work(payloads: list[Any]) -> list[Any]:
        entered.set()
        await go.wait()
        return [None] * len(payloads)

    ids = await _enqueued(shop, 3)
    shop.start()
    async with asyncio.timeout(BOUND):
        await entered.wait()
    stopping = asyncio.ensure_future(shop.worker.stop())
    await asyncio.sleep(0)
    if grace:
        go.set()
    await stopping
    tasks = [await shop.get(task_id) for task_id in ids]
    assert [task.state for task in tasks[:2]] == ["completed" if grace else "pending"] * 2
    assert tasks[2].state == "completed" or tasks[2].owner_id is None


async def test_code_enqueues_for_no_single_item(shop: Workshop) -> None:
    from treadle.workers.context import holder

    holders = []

    @shop.handler(batch=2, kind="handler")
    async def work(payloads: list[Any]) -> list[Any]:
        holders.append(holder.get())
        return [None] * len(payloads)

    await shop.run(payload={})
    assert holders == [None]


# registration


@pytest.mark.parametrize(
    "options",
    [
        {"within": 1},
        {"key": "customer"},
        {"batch": 0},
        {"batch": 10**6},
        {"batch": 2, "isolation": "process"},
        {"batch": 2, "key": 3},
    ],
)
def test_invalid_options_are_refused(options: dict[str, Any]) -> None:
    async def work(payloads: list[Any]) -> list[Any]:
        return payloads

    with pytest.raises(InvalidPolicy):
        make_handler("work", work, kind="handler", **options)


def test_code_that_takes_no_list_is_refused() -> None:
    async def one(payload: dict[str, Any]) -> list[Any]:
        return []

    async def three(payloads: list[Any], contexts: Any, more: Any) -> list[Any]:
        return []

    async def numbers(payloads: list[int]) -> list[Any]:
        return []

    for code in (one, three, numbers):
        with pytest.raises(InvalidInput):
            make_handler("work", code, kind="handler", batch=2)


async def test_an_engine_enqueues_single_items_and_returns_their_typed_results() -> None:
    engine, thread = Engine("memory://"), threading.get_ident()

    @engine.handler("embed", batch=50)
    def embed(texts: list[Text]) -> list[Vector]:
        assert threading.get_ident() != thread
        return [Vector([len(text.text)]) for text in texts]

    async with engine, engine.worker():
        handles = [await engine.enqueue(embed, Text("a" * size)) for size in range(60)]
        results = [await handle.result(timeout=BOUND) for handle in handles]
    assert results == [Vector([size]) for size in range(60)]
