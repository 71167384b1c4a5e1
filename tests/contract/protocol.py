"""A bench for tests of remote workers: an engine on the store under test, whose time and that of its waiting both stand still."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from tests.contract.databases import Database, StoreClock
from tests.limits import BOUND

from treadle import Engine
from treadle.kernel.remote_workers.service import RemoteWorkers
from treadle.kernel.store.ports import Store
from treadle.model.clock import Clock
from treadle.model.tasks import ClaimedTask, Task
from treadle.settings import Settings
from treadle.testing import ManualClock


class Bench:
    """An engine on the store under test. `claims` counts the claims that were sent to the store."""

    def __init__(self, engine: Engine, clock: StoreClock, waiting: ManualClock) -> None:
        self.engine, self._clock, self._waiting = engine, clock, waiting
        self.claims = 0
        self.ticks = 0
        inner, wake = engine.kernel.store.tasks.claim, engine.kernel.store.tasks.wake

        async def claim(*arguments: Any) -> list[Task]:
            self.claims += 1
            return await inner(*arguments)

        async def count(*arguments: Any, **options: Any) -> Any:
            self.ticks += 1
            return await wake(*arguments, **options)

        engine.kernel.store.tasks.claim = claim  # type: ignore[method-assign]
        engine.kernel.store.tasks.wake = count  # type: ignore[method-assign]

    @property
    def workers(self) -> RemoteWorkers:
        return self.engine.kernel.remote_workers

    def now(self) -> int:
        return self._clock.now()

    async def pass_(self, seconds: float) -> None:
        """Let so much time pass everywhere."""
        await self._clock.advance(round(seconds * 1000))
        if getattr(self._clock, "manual", None) is not self._waiting:
            self._waiting.advance(seconds)
        await asyncio.sleep(0)

    async def pass_until(self, is_so: Callable[[], bool]) -> None:
        """Let time pass until it is so, a little whenever all that can be done has been done."""
        while not is_so():
            await self.pass_(0.1)
            await until(lambda: is_so() or self._waiting.sleeping > 0)

    async def worker(self, *handlers: str, name: str = "ada", **options: Any) -> str:
        """The id of a new worker, by default for everything."""
        return (await self.workers.register(name, handlers=handlers or ("*",), **options)).id

    async def put(self, name: str = "job", payload: dict[str, Any] | None = None, **options: Any) -> str:
        return (await self.engine.enqueue(name, payload, **options)).id

    async def one(self, worker_id: str, **options: Any) -> ClaimedTask:
        """The task that the worker gets now; there has to be one."""
        (claimed,) = await self.workers.claim(worker_id, **options)
        return claimed

    def waiting_claim(self, worker_id: str, wait_for: float = 60, **options: Any) -> asyncio.Task[list[ClaimedTask]]:
        return asyncio.ensure_future(self.workers.claim(worker_id, wait_for=wait_for, **options))

    async def waits(self, count: int = 1) -> None:
        """Once so many claims wait, and there is nothing to look for."""
        room = self.workers._waiters
        await until(lambda: len(room) == count and self._waiting.sleeping > 0)

    async def task(self, task_id: str) -> Task:
        return await self.engine.kernel.reads.get_task(task_id)

    async def transitions(self, task_id: str) -> list[str]:
        return [transition.transition for transition in await self.engine.kernel.reads.list_transitions(task_id)]


async def until(is_so: Callable[[], bool]) -> None:
    """Let others run until it is so."""
    async with asyncio.timeout(BOUND):
        while not is_so():  # noqa: ASYNC110 - many things, none of which says when it happens
            await asyncio.sleep(0.001)


@asynccontextmanager
async def open_bench(database: Database, clock: StoreClock, **settings: Any) -> AsyncIterator[Bench]:
    """A bench; when it closes, the log has to explain every row."""
    await database.open_store()  # so that the time of PostgreSQL stands still

    def store_of(url: str, clock: Clock) -> Store:
        return database.make_store()

    waiting: ManualClock = getattr(clock, "manual", None) or ManualClock()
    async with Engine("memory://", settings=Settings(**settings), clock=waiting, store_of=store_of) as engine:
        made = Bench(engine, clock, waiting)
        yield made
        assert (await engine.kernel.verify()).problems == ()
