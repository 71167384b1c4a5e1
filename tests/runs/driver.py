"""Runs by hand: a test claims tasks of runs and settles them one by one, through the engine's own settler; no worker runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from tests.engines import make_engine

from treadle import Engine
from treadle.kernel.queue.decide import failure, settlement
from treadle.kernel.store.queries import TaskFilter
from treadle.kernel.store.units import UnitAnswer
from treadle.model.names import ADVANCE, HANDLER, PARAM, SCRIPT
from treadle.model.outcomes import Problem, Succeeded
from treadle.model.retry import RetryPolicy
from treadle.model.tasks import Task
from treadle.model.values import decode

Answering = Callable[[str, dict[str, Any]], dict[str, Any]]

LIVE = ("pending", "running", "paused", "awaiting_external", "awaiting_approval")


class Hands:
    """One process: an engine, its claims, and what it does with them."""

    def __init__(self, engine: Engine, owner_id: str = "hands") -> None:
        self.engine, self.owner_id = engine, owner_id

    async def live(self, run_id: str) -> list[Task]:
        return await self.engine.kernel.store.tasks.list_matching(TaskFilter(states=LIVE, run_id=run_id), 100_000)

    async def claim(self, *kinds: str, limit: int = 1000) -> list[Task]:
        """Take everything that is ready, of those kinds (by default handlers' tasks)."""
        queues = await self.engine.kernel.store.tasks.list_queues()
        taken: list[Task] = []
        for queue_id, queue in queues.items():
            if queue.kind in (kinds or (HANDLER,)) and len(taken) < limit:
                taken += await self.engine.kernel.store.tasks.claim([queue_id], self.owner_id, 60_000, limit - len(taken))
        return taken

    async def claim_one(self, *kinds: str) -> Task:
        (task,) = await self.claim(*kinds, limit=1)
        return task

    async def payload(self, task: Task) -> dict[str, Any]:
        return await self.engine.kernel.value_store.unpack(task.payload)

    async def settle(self, task: Task, result: dict[str, Any] | None = None) -> UnitAnswer:
        decided = settlement(task, Succeeded(result or {}), RetryPolicy())
        return await self.engine.kernel.run_services.settler.settle(task, task.claim, decided)

    async def fail(self, task: Task, message: str = "It broke.", kind: str | None = None) -> UnitAnswer:
        return await self.engine.kernel.run_services.settler.settle(task, task.claim, failure(Problem("boom", message, kind)))

    async def advance(self) -> int:
        """Do the advance tasks that are ready, until there are none; how many."""
        count = 0
        while tasks := await self.claim(ADVANCE):
            for task in tasks:
                await self.settle(task)
            count += len(tasks)
        return count

    async def work(self, answer: Answering, *, together: bool = False) -> None:
        """Answer everything, one after another or all that is ready at once, until nothing is ready."""
        while True:
            await self.advance()
            tasks = await self.claim(HANDLER, SCRIPT)
            if not tasks:
                return
            if together:
                await asyncio.gather(*(self._answer(task, answer) for task in tasks))
                continue
            for task in tasks:
                await self._answer(task, answer)

    async def _answer(self, task: Task, answer: Answering) -> None:
        payload = await self.payload(task)
        try:
            result = run_script(payload) if task.kind == SCRIPT else answer(task.name, payload)
        except ValueError as error:
            await self.fail(task, str(error), type(error).__name__)
        else:
            await self.settle(task, result)

    async def states(self, run_id: str) -> dict[str, str]:
        """The last words of the states of all steps, by path (blocks by place)."""
        rows = await self.engine.kernel.runs.list_steps(run_id)
        return {row.path if row.is_step else row.place: row.state.rpartition(".")[2] for row in rows}

    async def inbox(self, run_id: str) -> list[dict[str, Any]]:
        return [
            decode(step.inbox) for step in await self.engine.kernel.store.runs.list_steps(run_id, None, 100_000, with_inbox=True)
        ]

    async def nothing_is_left(self, run_id: str) -> None:
        """No live task, nothing in an inbox, and the log explains the rows."""
        assert await self.live(run_id) == []
        assert await self.inbox(run_id) == []
        report = await self.engine.kernel.verify()
        assert report.problems == ()


def run_script(payload: dict[str, Any]) -> dict[str, Any]:
    """Run a script of a test's own flow right here; nothing in it is worth a process."""
    result: dict[str, Any] = {}
    params = {name.removeprefix(PARAM): value for name, value in payload.items() if name.startswith(PARAM)}
    exec(payload["script"]["code"], {"params": params, "result": result})
    return result


@asynccontextmanager
async def hands_on(url: str, owner_id: str = "hands", **options: Any) -> AsyncIterator[Hands]:
    async with make_engine(url, **options) as engine:
        yield Hands(engine, owner_id)
