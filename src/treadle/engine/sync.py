"""The blocking facade of `Engine`: a thread with its own event loop, and calls that wait for it."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, Generic, Literal, ParamSpec, Self, TypeVar, Unpack, overload

from treadle.engine.engine import Engine
from treadle.engine.handles import Handle
from treadle.model.clock import Duration
from treadle.model.errors import NotOpen, TreadleError, UsedAfterFork
from treadle.model.ids import Ref
from treadle.model.values import Json

if TYPE_CHECKING:
    from treadle.api.approvals import Approval
    from treadle.api.options import EnqueueOptions, FunctionOptions
    from treadle.api.streams import StreamEntry
    from treadle.engine.handles import Mapped, Progress
    from treadle.engine.within import BlockingTransaction, BlockingWithin
    from treadle.engine.worker_host import WorkerHost
    from treadle.kernel.queue.service import Enqueued
    from treadle.kernel.store.verify import VerifyReport
    from treadle.workers.references import Function, Handler

P = ParamSpec("P")
A = TypeVar("A")
T = TypeVar("T")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


def blocking(method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]) -> Callable[Concatenate[Any, P], T]:
    """Return the blocking version of an async method, for a facade with `run` and the object itself in `_inner`."""

    @wraps(method)
    def call(self: Any, /, *arguments: P.args, **options: P.kwargs) -> T:
        result: T = self.run(getattr(self._inner, method.__name__)(*arguments, **options))
        return result

    return call


class BlockingHandle(Generic[R_co]):
    """A task or a run that was started through a reference, for code without an event loop."""

    def __init__(self, engine: BlockingEngine, handle: Handle[R_co]) -> None:
        self._engine = engine
        self.handle = handle
        self.id, self.created = handle.id, handle.created

    def result(self, *, timeout: Duration | None = None) -> R_co:
        """Wait for the end and return the result as its annotated type; see `Handle.result`."""
        return self._engine.run(self.handle.result(timeout=timeout))

    def stream(self, name: str, *, offset: int = 0) -> Iterator[StreamEntry]:
        """Follow a stream of the task or run; see `Engine.stream`."""
        return self._engine.stream(self.id, name, offset=offset)

    def query(self, name: str, **options: Any) -> Any:
        """Return a value that the function has published; see `Handle.query`."""
        return self._engine.run(self.handle.query(name, **options))

    def signal(self, name: str, payload: Json = None, *, idempotency_key: str | None = None, actor: str | None = None) -> bool:
        """Send a signal to the function; see `Engine.signal`."""
        return self._engine.run(self.handle.signal(name, payload, idempotency_key=idempotency_key, actor=actor))

    def update(self, name: str, payload: Any = None, **options: Any) -> Any:
        """Send an update and return the function's answer; see `Handle.update`."""
        return self._engine.run(self.handle.update(name, payload, **options))


class BlockingMapped(Generic[R_co]):
    """The results of a map, for code without an event loop: `for result in e.map(resize, photos)`."""

    def __init__(self, engine: BlockingEngine, mapped: Mapped[R_co]) -> None:
        self._engine, self._mapped = engine, mapped
        self.progress = mapped.progress

    def results(self) -> list[R_co]:
        """Wait for all items and return their results."""
        return self._engine.run(self._mapped.results())

    def __iter__(self) -> Iterator[R_co]:
        return _iterate(self._engine, self._mapped.__aiter__())


def _iterate(engine: BlockingEngine, results: AsyncIterator[T]) -> Iterator[T]:
    """Yield the results of an asynchronous generator, each waited for on the engine's event loop."""
    ended = object()
    try:
        while (result := engine.run(_next(results, ended))) is not ended:
            yield result  # type: ignore[misc]
    finally:
        engine.run(_close(results))


async def _next(results: AsyncIterator[T], ended: object) -> T | object:
    return await anext(results, ended)


async def _close(results: Any) -> None:
    await results.aclose()


class BlockingEngine:
    """`Engine` for code without an event loop; methods take the arguments of the `Engine` methods of the same name."""

    def __init__(self, engine: Engine) -> None:
        self._inner = engine
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pid = 0
        """The process that opened it."""
        self._thread: threading.Thread | None = None
        self._worker: AbstractAsyncContextManager[WorkerHost] | None = None

    def __enter__(self) -> Self:
        self._pid = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="treadle-engine", daemon=True)
        self._thread.start()
        try:
            self.run(self._inner.open())
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._pid != os.getpid():
            return  # the parent process uses it
        try:
            self.stop_worker()
        finally:
            try:
                self.run(self._inner.close())
            finally:
                self._end()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the engine's event loop and wait for it."""
        if self._loop is None:
            coroutine.close()
            raise NotOpen("Open the engine first: `with engine.blocking() as e: ...`.")
        if self._pid != os.getpid():
            coroutine.close()
            raise UsedAfterFork
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def start_worker(self, **options: Any) -> None:
        """Run the engine's handlers in the background; options as for `Engine.worker`."""
        if self._worker is None:
            worker = self._inner.worker(**options)
            self.run(_call(worker.__aenter__))
            self._worker = worker

    def stop_worker(self) -> None:
        """Stop the worker gracefully; idempotent."""
        if self._worker is not None:
            worker, self._worker = self._worker, None
            self.run(_call(worker.__aexit__, None, None, None))

    def within(self, connection: Any, *, notify: bool = False) -> BlockingWithin:
        """Start work in the transaction of your own connection; see `Engine.within`. The engine need not be open."""
        from treadle.engine.within import BlockingWithin

        return BlockingWithin(self._inner.within(connection, notify=notify))

    @contextmanager
    def transaction(self) -> Iterator[BlockingTransaction]:
        """Write your own tables and start work in one transaction of a SQLite file; see `Engine.transaction`."""
        from treadle.engine.within import BlockingTransaction

        transaction = self._inner.transaction()
        entered = self.run(_call(transaction.__aenter__))
        try:
            yield BlockingTransaction(entered, self.run)
        except BaseException as error:
            self.run(_call(transaction.__aexit__, type(error), error, None))
            raise
        self.run(_call(transaction.__aexit__, None, None, None))

    @overload
    def enqueue(self, handler: Handler[P, R], /, *args: P.args, **kwargs: P.kwargs) -> BlockingHandle[R]: ...
    @overload
    def enqueue(
        self,
        name: str,
        payload: Mapping[str, Json] | None = None,
        *,
        idempotency_for: Duration = ...,
        **options: Unpack[EnqueueOptions],
    ) -> Enqueued: ...
    def enqueue(self, *args: Any, **kwargs: Any) -> Any:  # type: ignore[misc]
        """Store a task; see `Engine.enqueue`."""
        stored = self.run(self._inner.enqueue(*args, **kwargs))
        return BlockingHandle(self, stored) if isinstance(stored, Handle) else stored

    @overload
    def start(self, function: Function[P, R], /, *args: P.args, **kwargs: P.kwargs) -> BlockingHandle[R]: ...
    @overload
    def start(
        self, name: str, payload: Mapping[str, Json] | None = None, *, actor: str | None = None, **options: Unpack[FunctionOptions]
    ) -> BlockingHandle[Any]: ...
    def start(self, *args: Any, **kwargs: Any) -> Any:  # type: ignore[misc]
        """Start a durable function; see `Engine.start`."""
        return BlockingHandle(self, self.run(self._inner.start(*args, **kwargs)))

    @overload
    def result(self, task: BlockingHandle[R], *, timeout: Duration | None = None) -> R: ...  # type: ignore[overload-overlap]
    @overload
    def result(self, task: Ref, *, timeout: Duration | None = None) -> dict[str, Json]: ...
    def result(self, task: Any, *, timeout: Duration | None = None) -> Any:
        """Wait for the task and return its result; see `Engine.result`."""
        handle = task.handle if isinstance(task, BlockingHandle) else task
        return self.run(self._inner.result(handle, timeout=timeout))

    @overload
    def map(
        self,
        fn: Handler[[A], R] | Function[[A], R],
        items: Iterable[A],
        *,
        key: str | None = None,
        in_flight: int = 100,
        ordered: bool = True,
        errors: Literal["raise"] = "raise",
        on_progress: Callable[[Progress], None] | None = None,
    ) -> BlockingMapped[R]: ...
    @overload
    def map(
        self,
        fn: Handler[[A], R] | Function[[A], R],
        items: Iterable[A],
        *,
        key: str | None = None,
        in_flight: int = 100,
        ordered: bool = True,
        errors: Literal["collect"],
        on_progress: Callable[[Progress], None] | None = None,
    ) -> BlockingMapped[R | TreadleError]: ...
    def map(self, fn: Any, items: Iterable[Any], **options: Any) -> BlockingMapped[Any]:
        """Call registered code once for each item; see `Engine.map`."""
        return BlockingMapped(self, self._inner.map(fn, items, **options))

    def stream(self, work: Ref, name: str, *, offset: int = 0) -> Iterator[StreamEntry]:
        """Follow a stream of a run or a task: `for entry in e.stream(run, "tokens"): ...`; see `Engine.stream`."""
        return _iterate(self, self._inner.stream(work, name, offset=offset))

    enqueue_many = blocking(Engine.enqueue_many)
    cancel = blocking(Engine.cancel)
    retry = blocking(Engine.retry)
    pause = blocking(Engine.pause)
    resume = blocking(Engine.resume)
    get_task = blocking(Engine.get_task)
    list_tasks = blocking(Engine.list_tasks)
    why = blocking(Engine.why)
    start_run = blocking(Engine.start_run)
    run_result = blocking(Engine.run_result)
    start_function = blocking(Engine.start_function)
    start_plan = blocking(Engine.start_plan)
    signal = blocking(Engine.signal)

    def query(self, run: Ref, name: str, **options: Any) -> Json:
        """Return a value that the run's function has published; see `Runs.query`."""
        return self.run(self._inner.runs.query(run, name, **options))

    def update(self, run: Ref, name: str, payload: Any = None, **options: Any) -> Json:
        """Send an update and return the function's answer; see `Runs.update`."""
        return self.run(self._inner.runs.update(run, name, payload, **options))

    def verify(self) -> VerifyReport:
        """Check the history of every entity against the state tables."""
        return self.run(self._inner.kernel.verify())

    def list_approvals(self, **options: Any) -> list[Approval]:
        """Return approvals; options as for `Approvals.list`."""
        return self.run(self._inner.approvals.list(**options)).approvals

    def decide_approval(self, approval_id: str, decision: str, **options: Any) -> Approval:
        """Decide an approval; options as for `Approvals.decide`."""
        return self.run(self._inner.approvals.decide(approval_id, decision, **options))

    def _end(self) -> None:
        loop, thread = self._loop, self._thread
        self._loop = self._thread = None
        if loop is not None and thread is not None:
            asyncio.run_coroutine_threadsafe(_cancel_others(), loop).result()
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()


async def _cancel_others() -> None:
    """Cancel the tasks left on the loop, so that none is destroyed while pending."""
    others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    await asyncio.get_running_loop().shutdown_default_executor()


async def _call(method: Callable[..., Awaitable[T]], *arguments: Any) -> T:
    return await method(*arguments)
