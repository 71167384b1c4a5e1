"""`engine.map`: one task or run per item, a bounded number in flight, results in order or as they are completed."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from treadle.kernel.queue.service import TaskSpec
from treadle.model.errors import InvalidInput, TreadleError
from treadle.workers.references import ENQUEUE_OPTIONS, START_OPTIONS, Function, Handler, Reference

if TYPE_CHECKING:
    from treadle.engine.calls import Calls, Handle

R_co = TypeVar("R_co", covariant=True)


@dataclass(slots=True)
class Progress:
    """The progress of a map."""

    total: int | None
    """Number of items; None while an iterator without a length is read."""
    started: int = 0
    done: int = 0
    failed: int = 0


class Mapped(Generic[R_co]):
    """The results of a map: `async for result in mapped`, or `await mapped.results()`. Tasks are enqueued as it is iterated."""

    def __init__(
        self,
        calls: Calls,
        reference: Reference[..., Any],
        items: Iterable[Any],
        *,
        key: str | None,
        in_flight: int,
        ordered: bool,
        collect: bool,
        on_progress: Callable[[Progress], None] | None,
    ) -> None:
        if not isinstance(reference, Handler | Function):
            raise InvalidInput("engine.map takes code that was registered with @engine.task, @engine.handler or @engine.function.")
        if type(in_flight) is not int or in_flight < 1:
            raise InvalidInput("in_flight must be 1 or more.")
        self._calls, self._reference, self._items = calls, reference, items
        self._key, self._in_flight, self._ordered, self._collect = key, in_flight, ordered, collect
        self._on_progress = on_progress
        self.progress = Progress(len(items) if isinstance(items, Sized) else None)

    async def results(self) -> list[R_co]:
        """Wait for all items and return their results."""
        return [result async for result in self]

    async def __aiter__(self) -> AsyncIterator[R_co]:
        items = iter(self._items)
        waiting: deque[asyncio.Task[Any]] = deque()
        try:
            while True:
                waiting.extend(await self._start(items, self._in_flight - len(waiting)))
                if not waiting:
                    return
                for each in await self._ended(waiting):
                    error = each.exception()
                    if error is not None and not (self._collect and isinstance(error, TreadleError)):
                        raise error
                    yield each.result() if error is None else error  # type: ignore[misc]
        finally:
            for each in waiting:
                each.cancel()

    async def _ended(self, waiting: deque[asyncio.Task[Any]]) -> list[asyncio.Task[Any]]:
        """Wait for the next results, and remove them from those awaited."""
        if self._ordered:
            await asyncio.wait([waiting[0]])
            return [waiting.popleft()]
        ended, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for each in ended:
            waiting.remove(each)
        return list(ended)

    async def _start(self, items: Iterator[Any], room: int) -> list[asyncio.Task[Any]]:
        chunk = list(islice(items, room))
        if not chunk:
            return []
        handles = await self._submit(chunk)
        self.progress.started += len(handles)
        started = [asyncio.ensure_future(handle.result()) for handle in handles]
        for each in started:
            each.add_done_callback(self._count)
        return started

    async def _submit(self, chunk: Sequence[Any]) -> list[Handle[Any]]:
        from treadle.engine.calls import Handle

        reference, calls = self._reference, self._calls
        first = self.progress.started
        keys = [None if self._key is None else f"{self._key}/{first + offset}" for offset in range(len(chunk))]
        allowed = (ENQUEUE_OPTIONS if isinstance(reference, Handler) else START_OPTIONS) - {"idempotency_key", "unique_key"}
        options = reference.options_for("engine.map", allowed)
        payloads = [reference.payload(item) for item in chunk]
        if isinstance(reference, Handler):
            specs = [
                TaskSpec(name=reference.name, payload=payload, idempotency_key=key, **options)
                for key, payload in zip(keys, payloads, strict=True)
            ]
            stored = await calls.kernel.queue.enqueue(specs)
            return [Handle(calls, reference, each.id, each.created, is_run=False) for each in stored]
        starts = [
            calls.start_function(reference.name, payload, idempotency_key=key, **options)
            for key, payload in zip(keys, payloads, strict=True)
        ]
        return [Handle(calls, reference, each.id, each.created, is_run=True) for each in await asyncio.gather(*starts)]

    def _count(self, ended: asyncio.Task[Any]) -> None:
        if ended.cancelled():
            return
        self.progress.done += 1
        self.progress.failed += ended.exception() is not None
        if self._on_progress is not None:
            self._on_progress(self.progress)
