"""Callers who wait for a result: told at once by this process, found by one shared look at the store otherwise."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from treadle.kernel.ports import Store
from treadle.kernel.telemetry import Emit, StoreTrouble
from treadle.model.clock import Clock
from treadle.model.errors import StoreError
from treadle.model.tasks import Task

_FIRST_LOOK, _SLOWEST_LOOK = 0.02, 0.5
_LOOK_LIMIT = 1000


class Results:
    """Waits for tasks to end; all who wait share one query, and nobody waits costs nothing."""

    def __init__(self, store: Store, clock: Clock, emit: Emit) -> None:
        self._store = store
        self._clock = clock
        self._emit = emit
        self._waiting: dict[str, asyncio.Future[Task]] = {}
        self._looker: asyncio.Task[None] | None = None
        self._told = asyncio.Event()

    async def wait(self, task_id: str) -> Task:
        """The task, once it is finished."""
        if task_id not in self._waiting:
            self._waiting[task_id] = asyncio.get_running_loop().create_future()
            self._told.set()
        if self._looker is None or self._looker.done():
            self._looker = asyncio.get_running_loop().create_task(self._look())
        return await asyncio.shield(self._waiting[task_id])

    def finished(self, task_ids: Iterable[str]) -> None:
        """These ended in this process: look now if somebody waits for one."""
        if self._waiting and any(task_id in self._waiting for task_id in task_ids):
            self._told.set()

    async def close(self) -> None:
        """Stop looking; whoever still waits is canceled."""
        if self._looker is not None:
            self._looker.cancel()
            await asyncio.gather(self._looker, return_exceptions=True)
        for waiting in self._waiting.values():
            waiting.cancel()

    async def _look(self) -> None:
        pause = _FIRST_LOOK
        while self._waiting:
            told = self._told.is_set()
            self._told.clear()
            try:
                found = await self._store.find_finished(list(self._waiting)[:_LOOK_LIMIT])
            except StoreError as error:
                self._emit(StoreTrouble("waiting for results", str(error), _SLOWEST_LOOK))
                found, pause = [], _SLOWEST_LOOK
            for task in found:
                waiting = self._waiting.pop(task.id, None)
                if waiting is not None and not waiting.done():
                    waiting.set_result(task)
            pause = _FIRST_LOOK if found or told else min(pause * 1.5, _SLOWEST_LOOK)
            try:
                async with asyncio.timeout(pause):
                    await self._told.wait()
            except TimeoutError:
                continue
