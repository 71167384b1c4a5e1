"""Stopping: no new claims, a time of grace, and then everything is given back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from tests.limits import BOUND
from tests.workers.harness import Workshop, turns

from treadle.kernel.telemetry.events import LoopError, TaskSettled, TaskTaken
from treadle.model.errors import StoreUnavailable
from treadle.model.states import TaskState
from treadle.workers import loop
from treadle.workers.context import Context

MakeShop = Callable[..., Workshop]


async def test_running_tasks_get_the_grace_period(make_shop: MakeShop) -> None:
    shop, go_on = make_shop(concurrency=1, grace=10.0), asyncio.Event()

    @shop.handler()
    async def work(payload: Any) -> None:
        await go_on.wait()

    running, waiting = await shop.enqueue(), await shop.enqueue()
    shop.start()
    await shop.events.heard(TaskTaken)
    stopping = asyncio.ensure_future(shop.worker.stop())
    await asyncio.sleep(0)
    go_on.set()
    await stopping
    assert (await shop.get(running)).state == TaskState.COMPLETED
    assert (await shop.get(waiting)).claim_version == 0
    assert shop.worker.released == 0


async def test_work_past_the_grace_period_is_released_immediately(make_shop: MakeShop) -> None:
    shop, cleaned = make_shop(grace=0.0), asyncio.Event()

    @shop.handler()
    async def work(payload: Any, ctx: Context) -> Any:
        if ctx.attempt == 2:
            return {"done": True}
        try:
            await asyncio.Event().wait()
        finally:
            cleaned.set()

    task_id = await shop.enqueue()
    shop.start()
    await shop.events.heard(TaskTaken)
    await shop.worker.stop()
    assert cleaned.is_set()
    task = await shop.get(task_id)
    assert (task.state, task.owner_id, task.wake_at, task.attempt) == (TaskState.PENDING, None, None, 2)
    assert (task.failures, task.takeovers) == (0, 0)
    assert (shop.worker.released, shop.worker.handled) == (1, 0)
    shop.start(shop.make_worker("owner-2"))
    assert (await shop.settled(task_id, 2)).state == TaskState.COMPLETED
    assert await shop.transitions(task_id) == ["release", "succeed"]


async def test_a_handler_that_ignores_cancellation_loses_its_task(make_shop: MakeShop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "LAST_WAIT", 0.1)
    shop, never = make_shop(grace=0.0), asyncio.Event()

    @shop.handler()
    async def work(payload: Any) -> dict[str, Any]:
        while not never.is_set():
            try:
                await never.wait()
            except asyncio.CancelledError:
                continue
        return {"late": True}

    task_id = await shop.enqueue()
    shop.start()
    await shop.events.heard(TaskTaken)
    async with asyncio.timeout(BOUND):
        await shop.worker.stop()
    assert (await shop.get(task_id)).owner_id is None
    assert len(shop.events.of(LoopError)) == 1
    runner = shop.worker._attempts[task_id].runner
    never.set()
    assert runner is not None
    await asyncio.gather(runner, return_exceptions=True)
    assert (await shop.get(task_id)).state == TaskState.PENDING
    assert [settled.transition for settled in shop.events.of(TaskSettled)] == ["release"]


async def test_a_store_that_does_not_answer_does_not_keep_a_worker_from_stopping(
    make_shop: MakeShop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "LAST_WAIT", 0.1)
    shop = make_shop(grace=0.0)

    @shop.handler()
    async def work(payload: Any) -> None:
        await asyncio.Event().wait()

    task_id = await shop.enqueue()
    shop.start()
    await shop.events.heard(TaskTaken)

    async def away(units: Any) -> Any:
        raise StoreUnavailable("away")

    with monkeypatch.context() as patch:
        patch.setattr(shop.store, "commit", away)
        async with asyncio.timeout(BOUND):
            await shop.worker.stop()
    assert shop.worker.running == 0
    assert (await shop.get(task_id)).owner_id == "owner-1"
    assert await shop.wake(60) == 1


async def test_a_settlement_on_its_way_is_not_interrupted(make_shop: MakeShop, monkeypatch: pytest.MonkeyPatch) -> None:
    shop = make_shop(grace=0.0)
    committing, go_on = asyncio.Event(), asyncio.Event()

    @shop.handler()
    async def work(payload: Any) -> dict[str, Any]:
        return {"done": True}

    task_id = await shop.enqueue()
    commit = shop.store.commit

    async def slow(units: Any) -> Any:
        committing.set()
        await go_on.wait()
        return await commit(units)

    monkeypatch.setattr(shop.store, "commit", slow)
    shop.start()
    await committing.wait()
    shop.worker.lose(shop.worker._attempts[task_id].context.token, "a look at the store in the wrong moment")
    stopping = asyncio.ensure_future(shop.worker.stop())
    await turns()
    go_on.set()
    await stopping
    assert (await shop.get(task_id)).state == TaskState.COMPLETED
