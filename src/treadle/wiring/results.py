"""Callers who wait for a result: told at once by this process, found by one shared look at the store otherwise."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from treadle.kernel.telemetry import Emit, LoopError, StoreTrouble
from treadle.model.clock import Clock
from treadle.model.errors import StoreError


class _Ended(Protocol):
    @property
    def id(self) -> str: ...


T = TypeVar("T", bound=_Ended)

_FIRST_LOOK, _SLOWEST_LOOK = 0.02, 0.5
"""Seconds between looks: soon at first, as much ends soon."""
_LOOK_LIMIT = 1000


@dataclass(slots=True)
class _Awaited(Generic[T]):
    ended: asyncio.Future[T]
    callers: int = 0


class Results(Generic[T]):
    """Waits for tasks or runs to end; all who wait share one query, and nobody waits costs nothing."""

    def __init__(self, find: Callable[[Sequence[str]], Awaitable[list[T]]], clock: Clock, emit: Emit) -> None:
        self._find = find
        self._clock = clock
        self._emit = emit
        self._awaited: dict[str, _Awaited[T]] = {}
        self._looker: asyncio.Task[None] | None = None
        self._told = asyncio.Event()

    async def wait(self, task_id: str) -> T:
        """The task, once it is finished."""
        loop = asyncio.get_running_loop()
        awaited = self._awaited.get(task_id)
        if awaited is None:
            awaited = self._awaited[task_id] = _Awaited(loop.create_future())
            self._told.set()
        if self._looker is None or self._looker.done():
            self._looker = loop.create_task(self._look())
        awaited.callers += 1
        try:
            return await asyncio.shield(awaited.ended)
        finally:
            awaited.callers -= 1
            if not awaited.callers and self._awaited.get(task_id) is awaited:
                del self._awaited[task_id]

    def finished(self, task_ids: Iterable[str]) -> None:
        """These ended in this process: look now if somebody waits for one."""
        if self._awaited and any(task_id in self._awaited for task_id in task_ids):
            self._told.set()

    async def close(self) -> None:
        """Stop looking; whoever still waits is canceled."""
        if self._looker is not None:
            self._looker.cancel()
            await asyncio.gather(self._looker, return_exceptions=True)
        for awaited in self._awaited.values():
            awaited.ended.cancel()

    async def _look(self) -> None:
        pause = _FIRST_LOOK
        while self._awaited:
            told = self._told.is_set()
            self._told.clear()
            try:
                found = await self._answer()
                pause = _FIRST_LOOK if found or told else min(pause * 1.5, _SLOWEST_LOOK)
            except StoreError as error:
                self._emit(StoreTrouble("waiting for results", str(error), _SLOWEST_LOOK))
                pause = _SLOWEST_LOOK
            except Exception as error:
                self._emit(LoopError("results", repr(error)))
                pause = _SLOWEST_LOOK
            try:
                async with asyncio.timeout(pause):
                    await self._told.wait()
            except TimeoutError:
                continue

    async def _answer(self) -> int:
        """Answer those whose tasks have ended; how many tasks that were."""
        task_ids = list(self._awaited)
        count = 0
        for start in range(0, len(task_ids), _LOOK_LIMIT):
            for task in await self._find(task_ids[start : start + _LOOK_LIMIT]):
                count += 1
                awaited = self._awaited.pop(task.id, None)
                if awaited is not None and not awaited.ended.done():
                    awaited.ended.set_result(task)
        return count
