"""Functions by hand: a test claims their tasks and executes them one claim at a time; no worker runs, and time stands still.

A `Process` is what one process would be: it can die at any of its commits, before or after it, and another takes over.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from tests.limits import BOUND

from treadle import Engine
from treadle.kernel.queue.decide import failure, settlement
from treadle.kernel.store.queries import TaskFilter
from treadle.kernel.store.units import Finish, Requeue, Unit, UnitAnswer
from treadle.model.names import FUNCTION, HANDLER
from treadle.model.outcomes import Problem, Succeeded
from treadle.model.retry import RetryPolicy
from treadle.model.tasks import Task
from treadle.settings import Settings
from treadle.stores.step_results import record_step
from treadle.testing import ManualClock
from treadle.workers.context import Context
from treadle.workers.effects import EffectKernel
from treadle.workers.executor import SystemExecutor
from treadle.workers.functions.execution import Runtime
from treadle.workers.functions.runner import FunctionRunner

LEASE_FOR = 60_000
LIVE = ("pending", "running", "paused", "awaiting_external", "awaiting_approval")


class Died(BaseException):
    """The process is gone."""


class Dying:
    """A committer of a process that dies at its n-th commit, before it or after it."""

    def __init__(self, inner: Any, at: int | None, *, after: bool) -> None:
        self._inner, self._at, self._after = inner, at, after
        self.count = 0
        self.units: list[Unit] = []

    async def submit(self, unit: Unit, patience: float | None = None) -> UnitAnswer:
        self.count += 1
        dies = self.count == self._at
        if (dies and not self._after) or (self._at is not None and self.count > self._at):
            raise Died
        answer: UnitAnswer = await self._inner.submit(unit, patience)
        self.units.append(unit)
        if dies:
            raise Died
        return answer

    def streamed(self) -> None:
        self._inner.streamed()


class Process:
    """One process that executes functions and handlers, claim by claim."""

    _number = 0

    def __init__(self, engine: Engine, *, dies_at: int | None = None, after: bool = False, warm: int = 1000) -> None:
        Process._number += 1
        self.engine = engine
        self.owner_id = f"process-{Process._number}"
        self.committer = Dying(engine.kernel.committer, dies_at, after=after)
        self.executor = SystemExecutor(4)
        functions = engine.kernel.run_services.functions
        self.runner = FunctionRunner(
            engine.kernel.function_registry,
            Runtime(
                engine.kernel.store,
                self.committer,  # type: ignore[arg-type]
                engine.kernel.value_store,
                engine.kernel.clock,
                engine.kernel.ids,
                self.executor,
                functions.resolve,
                functions.finished,
                "default",
                1024 * 1024,
                record_step=record_step,
                streams=engine.kernel.streams,
                limits_for=engine.kernel.core.limits_for,
            ),
            warm,
        )
        self.claims = 0

    async def claim(self, *kinds: str, limit: int = 1000) -> list[Task]:
        taken: list[Task] = []
        for queue_id, queue in (await self.engine.kernel.store.tasks.list_queues()).items():
            if queue.kind in kinds and (queue.kind != FUNCTION or self.runner.find(queue.name) is not None):
                taken += await self.engine.kernel.store.tasks.claim([queue_id], self.owner_id, LEASE_FOR, limit)
        return taken

    async def execute(self, task: Task) -> Finish | Requeue | None:
        self.claims += 1
        kernel = self.engine.kernel
        services = EffectKernel(kernel.store, self.committer, kernel.value_store, kernel.clock)  # type: ignore[arg-type]
        services.loop = asyncio.get_running_loop()
        context = Context(task, kernel.clock.now, lambda _: None, effects=services)
        return await self.runner.execute(task, context, lambda _: None)

    async def turn(self, answer: Callable[[str, dict[str, Any]], dict[str, Any]] | None = None) -> int:
        """Wake what is due, execute every function that is ready, answer every handler's task; how many tasks there were."""
        await self.engine.kernel.store.tasks.wake(10_000)
        tasks = await self.claim(FUNCTION)
        done = await asyncio.gather(*(self.execute(task) for task in tasks), return_exceptions=True)
        for each in done:
            if isinstance(each, BaseException):
                raise each
        handled = await self.claim(HANDLER) if answer is not None else []
        for task in handled:
            await self.answer(task, answer)
        return len(tasks) + len(handled)

    async def answer(self, task: Task, answer: Any) -> None:
        payload = await self.engine.kernel.value_store.unpack(task.payload)
        try:
            result = answer(task.name, payload)
        except ValueError as error:
            await self.fail(task, str(error))
        else:
            await self.settle(task, result)

    async def settle(self, task: Task, result: dict[str, Any] | None = None) -> UnitAnswer:
        decided = settlement(task, Succeeded(result or {}), RetryPolicy())
        return await self.engine.kernel.run_services.settler.settle(task, task.claim, decided)

    async def fail(self, task: Task, message: str = "It broke.") -> UnitAnswer:
        return await self.engine.kernel.run_services.settler.settle(task, task.claim, failure(Problem("boom", message)))

    async def quiet(self, answer: Any = None) -> None:
        """Until nothing is ready."""
        while await self.turn(answer):
            pass

    async def live(self, run_id: str) -> list[Task]:
        return await self.engine.kernel.store.tasks.list_matching(TaskFilter(states=LIVE, run_id=run_id), 100_000)

    def die(self) -> None:
        self.runner.close()
        self.executor.close()


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    """Look again and again until it holds."""
    async with asyncio.timeout(BOUND):
        while not await holds():  # noqa: ASYNC110 - what is looked at may be in another process
            await asyncio.sleep(0.01)


async def requeued(engine: Engine, run_id: str) -> bool:
    """Whether nothing of the run is being executed or could be: all of it waits."""
    tasks = await engine.kernel.run_reads.list_live_tasks(run_id)
    return bool(tasks) and all(task.owner_id is None and task.wake_at is not None for task in tasks)


class Scene:
    """A store, a clock that stands still, and processes on it."""

    def __init__(self, engine: Engine, clock: ManualClock) -> None:
        self.engine, self.clock = engine, clock
        self._processes: list[Process] = []

    def process(self, **options: Any) -> Process:
        process = Process(self.engine, **options)
        self._processes.append(process)
        return process

    def close(self) -> None:
        for process in self._processes:
            process.die()

    async def state(self, run_id: str) -> str:
        return (await self.engine.kernel.runs.get_run(run_id)).state

    async def steps(self, run_id: str) -> list[tuple[str, str, str]]:
        """(place, kind and name, state) in the order of the program."""
        recorded = await self.engine.kernel.functions.recorded(run_id)
        return [(each.place, f"{each.kind} {each.name}", each.state) for each in recorded]


@asynccontextmanager
async def function_scene(url: str = "memory://", **settings: Any) -> AsyncIterator[Scene]:
    clock = ManualClock()
    engine = Engine(url, settings=Settings(**settings), clock=clock)
    async with engine:
        scene = Scene(engine, clock)
        try:
            yield scene
        finally:
            scene.close()
            await asyncio.sleep(0)
