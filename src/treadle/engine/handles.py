"""Handles of tasks and runs, with their typed results: of one of them, and of a map over many.

`engine.map` starts one task or run per item, a bounded number in flight, with results in order or as they are completed.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass
from inspect import signature
from itertools import islice
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from treadle.api.options import PYTHON
from treadle.api.tasks import TaskSpec
from treadle.kernel.store.lookups import PAGE_LIMIT, find_work
from treadle.model.clock import Duration
from treadle.model.conversion import Converter, is_raw
from treadle.model.errors import InvalidInput, TreadleError
from treadle.model.runs import Run
from treadle.model.states import RUN, TASK
from treadle.model.tasks import Task
from treadle.model.values import Json
from treadle.workers.references import ENQUEUE_OPTIONS, START_OPTIONS, CodeReference, Function, Handler

if TYPE_CHECKING:
    from treadle.api.runs import RunDetail
    from treadle.api.steps import Step
    from treadle.api.streams import StreamEntry
    from treadle.api.tasks import TaskDetail
    from treadle.engine.engine import Engine
    from treadle.kernel.queue.why import Reason
    from treadle.model.tasks import Transition

R = TypeVar("R")


def plain_payload(payload: Mapping[str, Json] | None) -> Json:
    """Convert any mapping to a dict; the queue rejects everything else."""
    return dict(payload) if isinstance(payload, Mapping) else payload


R_co = TypeVar("R_co", covariant=True)


class Handle(Generic[R_co]):
    """A task or a run: its state, its typed result, and the operations on it.

    `engine.enqueue` and `engine.start` return one of new work, and `engine.handle` one of any id. Operations raise `TaskNotFound`
    or `RunNotFound` if there is no such work.
    """

    __slots__ = ("_engine", "_entity", "_reference", "created", "id")

    def __init__(
        self,
        engine: Engine,
        reference: CodeReference[..., R_co] | None,
        work_id: str,
        created: bool = False,
        entity: str | None = None,
    ) -> None:
        """The `entity` is `task` or `run`; None: as the reference says, or as the store shows at the first operation."""
        self._engine, self._reference = engine, reference
        self._entity = entity or (None if reference is None else RUN.entity if isinstance(reference, Function) else TASK.entity)
        self.id = work_id
        self.created = created
        """True if this call has started it; False if an earlier call with the same key had, or for an id."""

    def __repr__(self) -> str:
        return f"<Handle {self.id}>"

    def on(self, engine: Engine) -> Handle[R_co]:
        """Return the handle of the same work for use with another engine on its store."""
        return self if engine is self._engine else Handle(engine, self._reference, self.id, self.created, self._entity)

    async def _find(self) -> Task | Run:
        """Read the task or run; the handle then has its complete id."""
        kernel = self._engine.kernel
        record = await find_work(kernel.store, kernel.settings.namespace, self.id, self._entity)
        self.id, self._entity = record.id, RUN.entity if isinstance(record, Run) else TASK.entity
        return record

    async def status(self) -> TaskDetail | RunDetail:
        """Return its record: state, times, values, error, and the reason for its state; `str` of it is one line."""
        work = await self._find()
        return await (self._engine.runs.get(work.id) if isinstance(work, Run) else self._engine.tasks.get(work.id))

    async def why(self) -> Reason:
        """Explain its state: a code and a line of text."""
        work, kernel = await self._find(), self._engine.kernel
        return await (kernel.run_reads.why(work) if isinstance(work, Run) else kernel.reads.explain(work))

    async def steps(self) -> list[Step]:
        """Return the steps and blocks of a run, each below its parent."""
        if isinstance(await self._find(), Task):
            raise InvalidInput(f"{self.id} is a task; only runs have steps.")
        list_steps = self._engine.kernel.run_services.step_operations.list
        page = await list_steps(self.id, limit=PAGE_LIMIT)
        steps = page.steps
        while page.next_after is not None:
            page = await list_steps(self.id, limit=PAGE_LIMIT, after=page.next_after)
            steps = steps + page.steps
        return steps

    async def events(self, after: int | None = None) -> AsyncGenerator[Transition, None]:
        """Follow its entries of the log, for a run also those of its tasks and steps; `after` as in `Engine.events`."""
        which = {"run_id" if isinstance(await self._find(), Run) else "entity_id": self.id}
        async for transition in self._engine.events(after, **which):
            yield transition

    async def cancel(self, *, actor: str = PYTHON, reason: str | None = None, force: bool = False) -> None:
        """End it; `actor` and `reason` are shown in its log. With `force`, a function does not clean up.

        A handler is stopped: immediately in this process, elsewhere within about a second.
        """
        await self._operate("cancel", actor, reason=reason, force=force)

    async def retry(self, *, actor: str = PYTHON, payload: Mapping[str, Json] | None = None, step: str | None = None) -> None:
        """Make a failed, canceled or ignored task live again, with an edited `payload` if one is given; or repeat what failed in a
        run, or in one `step` of it (an id or a path).

        For the task of a run, its step is repeated, with everything after it. The log shows the `actor`.
        """
        await self._operate("retry", actor, payload=plain_payload(payload), step=step)

    async def pause(self, *, actor: str = PYTHON, reason: str | None = None, interrupt: bool = False) -> None:
        """Hold it; attempts in progress end normally, or with `interrupt` that of a task stops and is repeated after the resume.

        `actor` and the `reason` for a task are shown in the log, and by `why`.
        """
        await self._operate("pause", actor, reason=reason, interrupt=interrupt)

    async def resume(self, *, actor: str = PYTHON) -> None:
        """Release it after a pause; the log shows the `actor`."""
        await self._operate("resume", actor)

    async def _operate(self, operation: str, actor: str, **options: Any) -> None:
        work = await self._find()
        method = getattr(self._engine.runs if isinstance(work, Run) else self._engine.kernel.queue, operation)
        options = {name: value for name, value in options.items() if value not in (None, False)}
        for name in options.keys() - signature(method).parameters:
            raise InvalidInput(f"{operation} of a {self._entity} does not take {name}.")
        await method(work.id, actor=actor, **options)

    async def result(self, *, timeout: Duration | None = None) -> R_co:
        """Wait for the end, at most `timeout`, and return the result as its annotated type.

        Raises as `Engine.result` does.
        """
        result: Any = await self._engine.kernel.results.of(self.id, timeout, self._entity)
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
        value = await self._engine.kernel.runs.query(self.id, name, wait=wait)
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
        runs = self._engine.kernel.runs
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
            return [Handle(engine, reference, task.id, task.created) for task in stored]
        starts = [
            engine.start_function(reference.name, payload, idempotency_key=key, **options)
            for key, payload in zip(keys, payloads, strict=True)
        ]
        return [Handle(engine, reference, run.id, run.created) for run in await asyncio.gather(*starts)]

    def _count(self, ended: asyncio.Task[Any]) -> None:
        if ended.cancelled():
            return
        self.progress.done += 1
        self.progress.failed += ended.exception() is not None
        if self._on_progress is not None:
            self._on_progress(self.progress)
