"""Handles of work that was started through an engine, with its typed results: of one task or run, and of a map over many.

`engine.map` starts one task or run per item, a bounded number in flight, with results in order or as they are completed.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from treadle.api.tasks import TaskSpec
from treadle.model.clock import Duration
from treadle.model.conversion import Converter, is_raw
from treadle.model.errors import InvalidInput, TreadleError
from treadle.model.values import Json
from treadle.workers.references import ENQUEUE_OPTIONS, START_OPTIONS, CodeReference, Function, Handler

if TYPE_CHECKING:
    from treadle.api.streams import StreamEntry
    from treadle.engine.engine import Engine

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


class Handle(Generic[R_co]):
    """A task or a run that was started through a reference or a name, and its typed result."""

    __slots__ = ("_engine", "_is_run", "_reference", "created", "id")

    def __init__(
        self, engine: Engine, reference: CodeReference[..., R_co] | None, work_id: str, created: bool, is_run: bool
    ) -> None:
        self._engine, self._reference, self._is_run = engine, reference, is_run
        self.id = work_id
        self.created = created
        """False if an earlier call with the same key had started it."""

    def __repr__(self) -> str:
        return f"<Handle {self.id}>"

    async def result(self, *, timeout: Duration | None = None) -> R_co:
        """Wait for the end, at most `timeout`, and return the result as its annotated type.

        Raises as `Engine.result` and `Engine.run_result` do.
        """
        waits = self._engine.run_result if self._is_run else self._engine.result
        result: Any = await waits(self.id, timeout=timeout)
        if self._reference is not None:
            result = self._reference.signature.load_result(result)
        return result  # type: ignore[no-any-return]

    def stream(self, name: str, *, offset: int = 0) -> AsyncGenerator[StreamEntry, None]:
        """Follow the stream `name` of the task or run from `offset` on; see `Engine.stream`."""
        return self._engine.kernel.streams.follow(self.id, name, offset=offset)

    @overload
    async def query(self, name: str, *, wait: Duration = ...) -> Json: ...
    @overload
    async def query(self, name: str, *, wait: Duration = ..., type: type[R]) -> R: ...
    async def query(self, name: str, *, wait: Duration = 0, type: Any = Any) -> Any:  # noqa: A002
        """Return the value that the function last published under the name, as the `type` if one is given.

        If there is none yet, `wait` for it, at most that long; `NotFound` (`nothing_published`) if none comes.
        """
        value = await self._engine.kernel.run_services.runs.query(self.id, name, wait=wait)
        return value if is_raw(type) else Converter(type).load(value)

    async def signal(
        self, name: str, payload: Json = None, *, idempotency_key: str | None = None, actor: str | None = None
    ) -> bool:
        """Send the signal `name` with that `payload` to the function; `idempotency_key` and `actor` as in `Engine.signal`."""
        functions = self._engine.kernel.functions
        return await functions.signal(self.id, name, payload, idempotency_key=idempotency_key, actor=actor)

    @overload
    async def update(
        self, name: str, payload: Any = None, *, timeout: Duration | None = None, idempotency_key: str | None = None
    ) -> Json: ...
    @overload
    async def update(
        self,
        name: str,
        payload: Any = None,
        *,
        timeout: Duration | None = None,
        idempotency_key: str | None = None,
        type: type[R],
    ) -> R: ...
    async def update(
        self,
        name: str,
        payload: Any = None,
        *,
        timeout: Duration | None = None,
        idempotency_key: str | None = None,
        type: Any = Any,  # noqa: A002
    ) -> Any:
        """Send the update `name` with that `payload` and return the function's answer, as the `type` if one is given.

        A call with the same `idempotency_key` waits for the same answer. Raises `TimeoutError` after `timeout`, and otherwise as
        `engine.runs.update` does.
        """
        runs = self._engine.kernel.run_services.runs
        value = await runs.update(self.id, name, payload, timeout=timeout, idempotency_key=idempotency_key)
        return value if is_raw(type) else Converter(type).load(value)


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
        engine: Engine,
        reference: CodeReference[..., Any],
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
        self._engine, self._reference, self._items = engine, reference, items
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
                for future in await self._ended(waiting):
                    error = future.exception()
                    if error is not None and not (self._collect and isinstance(error, TreadleError)):
                        raise error
                    yield future.result() if error is None else error  # type: ignore[misc]
        finally:
            for future in waiting:
                future.cancel()

    async def _ended(self, waiting: deque[asyncio.Task[Any]]) -> list[asyncio.Task[Any]]:
        """Wait for the next results, and remove them from those awaited."""
        if self._ordered:
            await asyncio.wait([waiting[0]])
            return [waiting.popleft()]
        ended, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for future in ended:
            waiting.remove(future)
        return list(ended)

    async def _start(self, items: Iterator[Any], room: int) -> list[asyncio.Task[Any]]:
        chunk = list(islice(items, room))
        if not chunk:
            return []
        handles = await self._submit(chunk)
        self.progress.started += len(handles)
        started = [asyncio.ensure_future(handle.result()) for handle in handles]
        for future in started:
            future.add_done_callback(self._count)
        return started

    async def _submit(self, chunk: Sequence[Any]) -> list[Handle[Any]]:
        reference, engine = self._reference, self._engine
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
            stored = await engine.kernel.queue.enqueue(specs)
            return [Handle(engine, reference, task.id, task.created, is_run=False) for task in stored]
        starts = [
            engine.start_function(reference.name, payload, idempotency_key=key, **options)
            for key, payload in zip(keys, payloads, strict=True)
        ]
        return [Handle(engine, reference, run.id, run.created, is_run=True) for run in await asyncio.gather(*starts)]

    def _count(self, ended: asyncio.Task[Any]) -> None:
        if ended.cancelled():
            return
        self.progress.done += 1
        self.progress.failed += ended.exception() is not None
        if self._on_progress is not None:
            self._on_progress(self.progress)
