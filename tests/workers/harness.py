"""A worker in pieces: its loop on a store in memory, with a clock that a test transitions and events that it can await."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from tests.limits import BOUND

from treadle.api.tasks import TaskSpec
from treadle.kernel.core import Core
from treadle.kernel.queue.service import Queue
from treadle.kernel.store.committer import Committer
from treadle.kernel.store.ports import Store
from treadle.kernel.store.value_store import ValueStore
from treadle.kernel.telemetry.events import TaskSettled, TelemetryEvent
from treadle.kernel.telemetry.observer import telemetry_of
from treadle.model.tasks import LogLine, Task
from treadle.testing import ManualClock, SeededIds
from treadle.workers.context import Catalog, Context, Registry, make_handler
from treadle.workers.executor import SystemExecutor
from treadle.workers.loop import WorkerLoop
from treadle.workers.resources import Resources, Services, WorkerOptions

E = TypeVar("E")
H = TypeVar("H", bound=Callable[..., Any])


class Events(list[TelemetryEvent]):
    """All that was told, in order; a test can await the next one. May be told from any thread."""

    def __init__(self) -> None:
        super().__init__()
        self._new = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def __call__(self, event: TelemetryEvent) -> None:
        self.append(event)
        self._loop.call_soon_threadsafe(self._new.set)

    def of(self, kind: type[E], /, **fields: object) -> list[E]:
        return [e for e in self if isinstance(e, kind) and all(getattr(e, name) == value for name, value in fields.items())]

    async def heard(self, kind: type[E], /, count: int = 1, **fields: object) -> E:
        """The `count`-th event of that kind with those fields, once it was told."""
        async with asyncio.timeout(BOUND):
            while len(found := self.of(kind, **fields)) < count:
                self._new.clear()
                await self._new.wait()
        return found[count - 1]


class Workshop:
    """One worker and what it needs. Nothing runs before `start`."""

    def __init__(self, store: Store, clock: ManualClock, **options: Any) -> None:
        self.store, self.clock = store, clock
        self.events = Events()
        self.ids = SeededIds(seed=7)
        self.committer = Committer(store, clock, self.events)
        self.queue = Queue(Core(store, self.committer, ValueStore(store), self.ids, clock, self.events))
        self.registry = Registry()
        self.lines: list[LogLine] = []
        self.options = WorkerOptions(**options)
        self.executor = SystemExecutor(self.options.threads)
        self.services = Services(on_line=self.lines.append)
        self.worker = self.make_worker("owner-1")
        self._running: list[tuple[WorkerLoop, asyncio.Task[None]]] = []

    def make_worker(self, owner_id: str, **options: Any) -> WorkerLoop:
        telemetry = telemetry_of(self.events)
        worker = WorkerLoop(
            Resources(self.store, self.committer, self.executor, self.clock, self.ids, self.events, telemetry, owner_id),
            Catalog(self.registry),
            self.services,
            WorkerOptions(**options) if options else self.options,
        )
        self.committer.on_ready.append(worker.wake)
        self.committer.on_fenced.append(worker.stop_fenced)
        return worker

    def handler(self, name: str = "work", **options: Any) -> Callable[[H], H]:
        def register(call: H) -> H:
            self.registry.add(make_handler(name, call, **options))
            return call

        return register

    def start(self, worker: WorkerLoop | None = None) -> None:
        worker = worker or self.worker
        self._running.append((worker, asyncio.get_running_loop().create_task(worker.run())))

    async def enqueue(self, name: str = "work", payload: Any = None, **options: Any) -> str:
        return (await self.queue.enqueue([TaskSpec(name=name, payload=payload, **options)]))[0].id

    async def get(self, task_id: str) -> Task:
        task = await self.store.tasks.find(task_id)
        assert task is not None
        return task

    async def settled(self, task_id: str, count: int = 1) -> Task:
        """The task as it is after its `count`-th settlement."""
        await self.events.heard(TaskSettled, count, task_id=task_id)
        return await self.get(task_id)

    async def run(self, name: str = "work", payload: Any = None, **options: Any) -> Task:
        """Enqueue one task and return it as its first attempt left it."""
        if not self._running:
            self.start()
        return await self.settled(await self.enqueue(name, payload, **options))

    async def wake(self, seconds: float = 0) -> int:
        """Let time pass and make ready what is due then; how many tasks that were."""
        self.clock.advance(seconds)
        woken = await self.store.tasks.wake(1000)
        self.worker.wake(woken.queue_ids)
        return woken.count

    async def transitions(self, task_id: str) -> list[str]:
        return [transition.transition for transition in await self.store.log.list_transitions(task_id)]

    async def close(self) -> None:
        for worker, running in self._running:
            worker.stop_claiming()
            worker.options.grace = 0
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await worker.stop()
        await self.committer.close()
        self.executor.close()


async def until(holds: Callable[[], bool]) -> None:
    """Let others run until it holds; for what only needs turns of the loop, not time."""
    async with asyncio.timeout(BOUND):
        while not holds():  # noqa: ASYNC110 - nobody signals this
            await asyncio.sleep(0)


async def turns(count: int = 100) -> None:
    """Let everything happen that can happen without time passing, to see that nothing more does."""
    for _ in range(count):
        await asyncio.sleep(0)


def taken(**fields: Any) -> Task:
    """A task as a claim gives it."""
    values: dict[str, Any] = {"id": "0198c3de-7a10-7c3e-b2a4-5d1f0c9e8a77", "queue_id": 1, "name": "work"}
    return Task(**values | {"owner_id": "owner-1", "claim_version": 1, "claimed_at": 1000, "payload": '{"n":1}'} | fields)


def context(lines: list[LogLine] | None = None, **fields: Any) -> Context:
    return Context(taken(**fields), lambda: 1000, (lines if lines is not None else []).append)
