"""The blocking facade of `Engine`: a thread with its own event loop, and calls that wait for it."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from functools import wraps
from inspect import signature
from typing import TYPE_CHECKING, Any, Concatenate, Generic, Literal, ParamSpec, Self, TypeVar, Unpack, overload

from treadle.engine.engine import Engine
from treadle.engine.handles import Handle
from treadle.model.clock import Duration
from treadle.model.errors import NotOpen, TreadleError, UsedAfterFork
from treadle.model.ids import Ref
from treadle.model.values import Json

if TYPE_CHECKING:
    from treadle.api.options import EnqueueOptions, WorkOptions
    from treadle.api.streams import StreamEntry
    from treadle.engine.handles import Mapped, Progress
    from treadle.engine.within import BlockingTransaction, BlockingWithin
    from treadle.engine.worker_host import WorkerHost
    from treadle.kernel.store.verify import VerifyReport
    from treadle.model.tasks import Transition
    from treadle.workers.references import CodeReference, Function, Handler

F = TypeVar("F", bound=Callable[..., Any])
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
    """A task or a run, for code without an event loop: methods take the arguments of the `Handle` methods of the same name."""

    def __init__(self, engine: BlockingEngine, handle: Handle[R_co]) -> None:
        self._engine = engine
        self.handle = self._inner = handle
        self.run = engine.run
        self.created = handle.created

    @property
    def id(self) -> str:
        """The id of the task or run."""
        return self.handle.id

    def __repr__(self) -> str:
        return repr(self.handle)

    def result(self, *, timeout: Duration | None = None) -> R_co:
        """Wait for the end and return the result as its annotated type; see `Handle.result`."""
        return self.run(self.handle.result(timeout=timeout))

    def stream(self, name: str, *, offset: int = 0) -> Iterator[StreamEntry]:
        """Follow a stream of the task or run; see `Engine.stream`."""
        return _iterate(self._engine, self.handle.stream(name, offset=offset))

    def events(self, after: int | None = None) -> Iterator[Transition]:
        """Follow its entries of the log; see `Handle.events`."""
        return _iterate(self._engine, self.handle.events(after))

    status = blocking(Handle.status)
    why = blocking(Handle.why)
    steps = blocking(Handle.steps)
    cancel = blocking(Handle.cancel)
    retry = blocking(Handle.retry)
    pause = blocking(Handle.pause)
    resume = blocking(Handle.resume)
    signal = blocking(Handle.signal)
    query = blocking(Handle.query)
    update = blocking(Handle.update)


class BlockingGroup:
    """The operations of `engine.tasks`, `engine.runs`, ... for code without an event loop: each call waits for its result."""

    def __init__(self, engine: BlockingEngine, group: Any) -> None:
        self._engine, self._group = engine, group

    def __dir__(self) -> Iterable[str]:
        return dir(self._group)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._group, name)

        @wraps(method)
        def call(*arguments: Any, **options: Any) -> Any:
            return self._engine.run(method(*arguments, **options))

        return call


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


def shown_as_engine(method: F) -> F:
    """Show the signature of the method of `Engine` of that name in help and completion."""
    setattr(method, "__signature__", signature(getattr(Engine, method.__name__)))  # noqa: B010
    return method


class BlockingEngine:
    """`Engine` for code without an event loop; methods take the arguments of the `Engine` methods of the same name."""

    alerts: BlockingGroup
    approvals: BlockingGroup
    runs: BlockingGroup
    schedules: BlockingGroup
    tasks: BlockingGroup
    watchers: BlockingGroup

    def __init__(self, engine: Engine) -> None:
        self._inner = engine
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pid = 0
        """The process that opened it."""
        self._thread: threading.Thread | None = None
        self._worker: AbstractAsyncContextManager[WorkerHost] | None = None

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> BlockingGroup:
            if name not in BlockingEngine.__annotations__:
                raise AttributeError(f"{type(self).__name__} has no attribute {name!r}.", name=name, obj=self)
            return BlockingGroup(self, getattr(self._inner, name))

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
        actor: str = ...,
        **options: Unpack[EnqueueOptions],
    ) -> BlockingHandle[dict[str, Json]]: ...
    @shown_as_engine  # type: ignore[misc]
    def enqueue(self, *args: Any, **kwargs: Any) -> Any:
        """Store a task; see `Engine.enqueue`."""
        return BlockingHandle(self, self.run(self._inner.enqueue(*args, **kwargs)))

    @overload
    def start(self, function: Function[P, R], /, *args: P.args, **kwargs: P.kwargs) -> BlockingHandle[R]: ...
    @overload
    def start(
        self,
        name: str | Sequence[tuple[str, str]],
        payload: Mapping[str, Json] | None = None,
        *,
        workflow: str | None = None,
        actor: str | None = None,
        **options: Unpack[WorkOptions],
    ) -> BlockingHandle[Any]: ...
    @shown_as_engine  # type: ignore[misc]
    def start(self, *args: Any, **kwargs: Any) -> Any:
        """Start a run of a function or a workflow; see `Engine.start`."""
        return BlockingHandle(self, self.run(self._inner.start(*args, **kwargs)))

    @overload
    def handle(self, work: Ref, code: CodeReference[..., R]) -> BlockingHandle[R]: ...
    @overload
    def handle(self, work: Ref) -> BlockingHandle[Any]: ...
    def handle(self, work: Any, code: Any = None) -> BlockingHandle[Any]:
        """Return a handle of any task or run; see `Engine.handle`."""
        return BlockingHandle(self, self._inner.handle(work, code))

    @overload
    def result(self, work: BlockingHandle[R], *, timeout: Duration | None = None) -> R: ...
    @overload
    def result(self, work: Ref, *, timeout: Duration | None = None) -> Any: ...
    def result(self, work: Any, *, timeout: Duration | None = None) -> Any:
        """Wait for the end of the task or run and return its result; see `Engine.result`."""
        return self.run(self._inner.result(work.handle if isinstance(work, BlockingHandle) else work, timeout=timeout))

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
    why = blocking(Engine.why)
    start_run = blocking(Engine.start_run)
    run_result = blocking(Engine.run_result)
    start_function = blocking(Engine.start_function)
    start_plan = blocking(Engine.start_plan)
    signal = blocking(Engine.signal)

    def verify(self) -> VerifyReport:
        """Check the history of every entity against the state tables."""
        return self.run(self._inner.kernel.verify())

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
