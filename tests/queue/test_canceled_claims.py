"""A caller that is canceled between the commit of a claim and its report leaves no task held until the lease expires."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

import pytest
from tests.dispatch.scenes import issue
from tests.engines import SHARED, port_of, url_of
from tests.limits import BOUND

from treadle import Engine
from treadle.dispatch import AgentCoordinator
from treadle.kernel.queue.waker import Waker
from treadle.kernel.store.committer import claim_tasks
from treadle.kernel.store.ports import Store
from treadle.model.clock import Clock
from treadle.settings import Settings
from treadle.stores import make_store


class Slow:
    """A store whose answers to one method are held back after they were committed, while `holding`."""

    def __init__(self, method: str) -> None:
        self._method = method
        self._inner: Any = None
        self.holding = False
        self.committed, self.may_report = asyncio.Event(), asyncio.Event()

    def store_of(self, url: str, clock: Clock) -> Store:
        self._inner = make_store(url, clock)
        return cast("Store", self)

    def __getattr__(self, name: str) -> Any:
        return port_of(getattr(self._inner, name), self._wrap) or self._wrap(name, getattr(self._inner, name))

    def _wrap(self, name: str, method: Any) -> Any:
        async def call(*arguments: Any, **options: Any) -> Any:
            answer = await method(*arguments, **options)
            if self.holding:
                self.holding = False
                self.committed.set()
                await self.may_report.wait()
            return answer

        return call if name == self._method else method


async def interrupt(slow: Slow, activity: asyncio.Task[Any]) -> None:
    """Cancel the call between its commit and its report."""
    async with asyncio.timeout(BOUND):
        await slow.committed.wait()
        activity.cancel()
        await asyncio.sleep(0)
        slow.may_report.set()
        with pytest.raises(asyncio.CancelledError):
            await activity


@pytest.fixture(params=SHARED)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return url_of(request.param, request, tmp_path)


@pytest.mark.postgres
async def test_a_canceled_claim_releases_its_tasks(url: str) -> None:
    slow = Slow("claim")
    async with Engine(url, settings=Settings(), store_of=slow.store_of) as engine:
        tasks = [await engine.enqueue("work") for _ in range(3)]
        store = engine.kernel.store
        heard: list[int] = []
        unsubscribe = await store.subscribe(heard.extend)
        (queue_id,) = await store.tasks.list_queues()
        slow.holding = True
        await interrupt(slow, asyncio.create_task(claim_tasks(store, [queue_id], "me", 60_000, 2)))
        found = [await engine.kernel.reads.get_task(each) for each in tasks]
        assert [(each.owner_id, each.attempt, each.takeovers) for each in found] == [(None, 1, 0)] * 3
        assert len(await store.tasks.claim([queue_id], "you", 60_000, 10)) == 3
        async with asyncio.timeout(BOUND):
            while queue_id not in heard:  # noqa: ASYNC110 - PostgreSQL reports it on another connection
                await asyncio.sleep(0.01)
        unsubscribe()
        assert (await engine.kernel.verify()).problems == ()


@pytest.mark.parametrize("method", ["claim", "commit"])
async def test_a_canceled_dequeue_releases_its_job(url: str, method: str) -> None:
    slow = Slow(method)
    async with Engine(url, settings=Settings(), store_of=slow.store_of) as engine, AgentCoordinator(engine) as coordinator:
        job_id = await coordinator.enqueue(issue())
        slow.holding = True
        await interrupt(slow, asyncio.create_task(coordinator.dequeue("one")))
        async with asyncio.timeout(BOUND):
            await engine.kernel.committer.drain()
            job = await coordinator.dequeue("two")
        assert job is not None
        assert job.id == job_id


async def test_a_canceled_waker_announces_the_queues_it_woke(tmp_path: Path) -> None:
    slow = Slow("wake")
    url = f"sqlite:///{tmp_path / 'treadle.db'}"
    async with Engine(url, settings=Settings(), store_of=slow.store_of) as engine:
        await engine.enqueue("work", delay=0.001)
        kernel, told = engine.kernel, list[int]()
        await kernel.clock.sleep(0.002)
        waker = Waker(kernel.store, kernel.clock, 60_000, told.extend, kernel.emit)
        slow.holding = True
        await interrupt(slow, asyncio.create_task(waker.run()))
        assert told == [*await kernel.store.tasks.list_queues()]
