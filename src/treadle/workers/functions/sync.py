"""Sync durable functions: the context whose operations block, and the coroutine that drives sync code.

The code runs in a greenlet on the thread of the event loop. An operation that it waits for is handed to the coroutine that drives
the greenlet, which awaits it and continues the code with its result or error. The driver of the run sees an ordinary coroutine, so
the journal, cancellation, replays and eviction are those of async functions, and a function that waits occupies no thread.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from datetime import datetime
from functools import partial
from typing import Any, Concatenate, ParamSpec, TypeVar, TypeVarTuple, Unpack, overload

from greenlet import getcurrent, greenlet

from treadle.api.streams import StreamEntry
from treadle.model.clock import Duration
from treadle.model.errors import InvalidInput, MisusedContext, NonRetryable
from treadle.model.ids import Ref
from treadle.model.values import Json, type_name
from treadle.workers.functions.base_context import BaseFunctionContext
from treadle.workers.functions.context import CallOptions, ChildOptions, EffectOptions, FunctionContext, FunctionStepOptions
from treadle.workers.functions.group_operations import Winner
from treadle.workers.functions.stream_operations import StreamReader
from treadle.workers.functions.wait_operations import ChildRun, Update
from treadle.workers.references import Function, Handler

A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
D = TypeVar("D")
E = TypeVar("E")
F = TypeVar("F")
P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
Ts = TypeVarTuple("Ts")


class _Code(greenlet):  # type: ignore[misc]
    """Sync code of a function. It may wait only while its caller expects an operation, not when the interpreter disposes of it."""

    expected = False

    def __init__(self, call: Callable[[], Any]) -> None:
        super().__init__(call)
        self.gr_context = getcurrent().gr_context  # shares context variables with its caller

    def proceed(self, switch: Callable[[], Any]) -> Any:
        """Execute the code until it waits, and return the operation; or its result, if it is `dead` then."""
        self.expected = True
        try:
            return switch()
        finally:
            self.expected = False


async def drive(call: Callable[[], R]) -> R:
    """Call sync code in a greenlet, and await the operations that it waits for."""
    code = _Code(call)
    switch = code.switch
    while True:
        operation = code.proceed(switch)
        if code.dead:
            return operation  # type: ignore[no-any-return]
        try:
            switch = partial(code.switch, await operation)
        except BaseException as error:
            switch = partial(code.throw, type(error), error, error.__traceback__)


def wait(operation: Awaitable[R]) -> R:
    """Wait for an operation in sync code."""
    return getcurrent().parent.switch(operation)  # type: ignore[no-any-return]


def as_coroutine(name: str, call: Callable[..., Any]) -> Callable[..., Coroutine[Any, Any, Any]]:
    """Return a sync function, which takes a `BlockingFunctionContext`, as an async one, which takes a `FunctionContext`."""

    @functools.wraps(call)
    async def run(*arguments: Any) -> Any:
        payload, context = arguments[:1], arguments[1:]
        result = await drive(partial(call, *payload, *map(BlockingFunctionContext, context)))
        if inspect.isawaitable(result):
            if inspect.iscoroutine(result):
                result.close()
            raise NonRetryable(
                f"The function {name} is sync and returned a {type_name(result)}: make it `async def`.", "invalid_result"
            )
        return result

    return run


class BlockingChildRun(ChildRun[R_co]):
    """A run that a sync function has started."""

    __slots__ = ()

    def result(self) -> R_co:  # type: ignore[override]
        """Wait for the child to end and return its result; raises `RunFailed` or `RunCanceled`."""
        check_code()
        return wait(super().result())


class BlockingUpdate(Update[R_co]):
    """A request that a caller waits for. Answer it once, with `reply` or `reject`."""

    __slots__ = ()

    def reply(self, result: Any = None) -> None:  # type: ignore[override]
        """Answer with a value (any JSON, or an instance of a supported class); when this returns, the answer is durable."""
        check_code()
        wait(super().reply(result))

    def reject(self, reason: str) -> None:  # type: ignore[override]
        """Reject it: `UpdateRejected` with the reason is raised to the caller."""
        check_code()
        wait(super().reject(reason))


class BlockingStreamReader:
    """The entries of a stream: `for entry in ctx.read_stream(child, "tokens")`. It ends with the work that writes them."""

    __slots__ = ("_reader",)

    def __init__(self, reader: StreamReader) -> None:
        self._reader = reader

    def __iter__(self) -> BlockingStreamReader:
        return self

    def __next__(self) -> StreamEntry:
        check_code()
        try:
            return wait(anext(self._reader))
        except StopAsyncIteration:
            raise StopIteration from None


def check_code() -> None:
    """Raise `MisusedContext` outside the code of a sync function."""
    code = getcurrent()
    if not isinstance(code, _Code) or not code.expected:
        raise MisusedContext(
            "An operation of ctx was called outside the code of its sync function, e.g. in a step, a thread or an asyncio task. "
            "Call it in the function itself, and use `ctx.gather(...)` to do things concurrently."
        )


class BlockingFunctionContext(BaseFunctionContext):
    """One run of a sync durable function: the operations of `FunctionContext` as blocking calls.

    The code between two operations must be deterministic, as a replay executes it again: use `now` and `random` of this class,
    and do everything else that may differ between executions in a `step`. It runs on the event loop's thread, so work that takes
    long belongs in a step, too.
    """

    __slots__ = ("_context",)

    def __init__(self, context: FunctionContext) -> None:
        super().__init__(context._driver)
        self._context = context

    @property
    def _operations(self) -> FunctionContext:
        check_code()
        return self._context

    # work

    @overload
    def step(self, fn: Callable[P, Coroutine[Any, Any, R]], /, *args: P.args, **kwargs: P.kwargs) -> R: ...
    @overload
    def step(
        self, fn: Callable[[Unpack[Ts]], Coroutine[Any, Any, R]], /, *args: *Ts, **options: Unpack[FunctionStepOptions]
    ) -> R: ...
    @overload
    def step(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R: ...
    @overload
    def step(self, fn: Callable[[Unpack[Ts]], R], /, *args: *Ts, **options: Unpack[FunctionStepOptions]) -> R: ...
    def step(self, *args: Any, **kwargs: Any) -> Any:  # type: ignore[misc]
        """Call a function once (async on the event loop, sync in a thread), as `FunctionContext.step`, and return its result."""
        return wait(self._operations.step(*args, **kwargs))

    @overload
    def transaction(
        self, session: Any, fn: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]], /, *args: P.args, **kwargs: P.kwargs
    ) -> R: ...
    @overload
    def transaction(
        self,
        session: Any,
        fn: Callable[[Any, Unpack[Ts]], Coroutine[Any, Any, R]],
        /,
        *args: *Ts,
        **options: Unpack[FunctionStepOptions],
    ) -> R: ...
    @overload
    def transaction(self, session: Any, fn: Callable[Concatenate[Any, P], R], /, *args: P.args, **kwargs: P.kwargs) -> R: ...
    @overload
    def transaction(
        self, session: Any, fn: Callable[[Any, Unpack[Ts]], R], /, *args: *Ts, **options: Unpack[FunctionStepOptions]
    ) -> R: ...
    def transaction(self, session: Any, fn: Any, /, *args: Any, **options: Any) -> Any:  # type: ignore[misc]
        """Call `fn(session, *args)` exactly once in your own database, as `FunctionContext.transaction`, and return its result."""
        return wait(self._operations.transaction(session, fn, *args, **options))

    @overload
    def effect(
        self, action: str, fn: Callable[..., Coroutine[Any, Any, R]], request: Json = None, **options: Unpack[EffectOptions]
    ) -> R: ...
    @overload
    def effect(self, action: str, fn: Callable[..., R], request: Json = None, **options: Unpack[EffectOptions]) -> R: ...
    def effect(self, action: str, fn: Callable[..., Any], request: Json = None, **options: Unpack[EffectOptions]) -> Any:
        """Call `fn()`, which changes an external system, as `FunctionContext.effect`, and return its response."""
        return wait(self._operations.effect(action, fn, request, **options))

    @overload
    def call(self, handler: Handler[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R: ...
    @overload
    def call(
        self, handler: str, payload: Mapping[str, Json] | None = None, *, name: str | None = None, **options: Unpack[CallOptions]
    ) -> dict[str, Json]: ...
    def call(self, *args: Any, **kwargs: Any) -> Any:  # type: ignore[misc]
        """Enqueue a task for a handler on any worker, as `FunctionContext.call`, and return its result."""
        return wait(self._operations.call(*args, **kwargs))

    def external(self, specialist: str, payload: Mapping[str, Json] | None = None, **options: Any) -> dict[str, Json]:
        """Run a job at an external service, as `FunctionContext.external`, and return its result."""
        return wait(self._operations.external(specialist, payload, **options))

    @overload
    def start(self, function: Function[P, R], /, *args: P.args, **kwargs: P.kwargs) -> BlockingChildRun[R]: ...
    @overload
    def start(
        self, function: str, payload: Mapping[str, Json] | None = None, **options: Unpack[ChildOptions]
    ) -> BlockingChildRun[Any]: ...
    def start(self, *args: Any, **kwargs: Any) -> Any:  # type: ignore[misc]
        """Start a function, sync or async, as a child run, as `FunctionContext.start`; `child.result()` waits for its result."""
        child = wait(self._operations.start(*args, **kwargs))
        return BlockingChildRun(child._driver, child._recorded, child._load)

    @overload
    def first(self, one: Callable[[], A], two: Callable[[], B], /) -> Winner[A | B]: ...
    @overload
    def first(self, one: Callable[[], A], two: Callable[[], B], three: Callable[[], C], /) -> Winner[A | B | C]: ...
    @overload
    def first(self, *calls: Callable[[], Any], **named: Callable[[], Any]) -> Winner[Any]: ...
    def first(self, *calls: Any, **named: Any) -> Winner[Any]:
        """Call functions that each wait for one operation; when the first operation ends, return it and abandon the others.

        `ctx.first(paid=lambda: ctx.wait_for("paid"), late=lambda: ctx.sleep(3600))`. `FunctionContext.first` names the operations
        that it takes. `value` is the result of the function that won; the others are left where they wait. If the operation
        that won failed, its error is raised here.
        """
        context, names = self._operations, (*[""] * len(calls), *named)
        codes = [_Code(call) for call in _checked("ctx.first", (*calls, *named.values()))]
        operations: list[Any] = []
        try:
            for code in codes:
                operations.append(code.proceed(code.switch))
                self._driver.note_begun(operations[-1])  # `context.first` awaits it, or nothing does
                if code.dead:
                    raise InvalidInput("A function in ctx.first returned without an operation of ctx.")
            positional, keywords = operations[: len(calls)], dict(zip(names[len(calls) :], operations[len(calls) :], strict=True))
            winner: Winner[Any] = wait(context.first(*positional, **keywords))
            code = codes[winner.index]
            value = code.proceed(partial(code.switch, winner.value))
            if not code.dead:
                self._driver.note_begun(value)
                raise InvalidInput("A function in ctx.first waits for one operation of ctx; put more of them into a child run.")
            return Winner(winner.name, winner.index, value)
        finally:
            for code in codes:
                if not code.dead:
                    code.throw()

    @overload
    def gather(self, one: Callable[[], A], /) -> tuple[A]: ...
    @overload
    def gather(self, one: Callable[[], A], two: Callable[[], B], /) -> tuple[A, B]: ...
    @overload
    def gather(self, one: Callable[[], A], two: Callable[[], B], three: Callable[[], C], /) -> tuple[A, B, C]: ...
    @overload
    def gather(
        self, one: Callable[[], A], two: Callable[[], B], three: Callable[[], C], four: Callable[[], D], /
    ) -> tuple[A, B, C, D]: ...
    @overload
    def gather(
        self, one: Callable[[], A], two: Callable[[], B], three: Callable[[], C], four: Callable[[], D], five: Callable[[], E], /
    ) -> tuple[A, B, C, D, E]: ...
    @overload
    def gather(
        self,
        one: Callable[[], A],
        two: Callable[[], B],
        three: Callable[[], C],
        four: Callable[[], D],
        five: Callable[[], E],
        six: Callable[[], F],
        /,
    ) -> tuple[A, B, C, D, E, F]: ...
    @overload
    def gather(self, *calls: Callable[[], A]) -> list[A]: ...
    @overload
    def gather(self, *calls: Callable[[], A], return_exceptions: bool) -> list[A | Exception]: ...
    def gather(self, *calls: Any, return_exceptions: bool = False) -> Any:
        """Call functions concurrently, each as a branch of the run, and return a list of their results in order.

        `ctx.gather(lambda: ctx.step(charge, order), lambda: ctx.call("pack"))`. In a loop, bind the variable:
        `lambda sku=sku: ctx.step(pack, sku)`. It waits for ALL of them, then raises the first failure in the order of the
        arguments. With `return_exceptions`, an `Exception` is a result. The run wakes once for all results of
        `partial(ctx.call, "pack", payload)` and other operations, but for each result that code such as a lambda receives.
        """
        context = self._operations
        branches = [self._branch(call) for call in _checked("ctx.gather", calls)]
        return wait(context.gather(*branches, return_exceptions=return_exceptions))

    def _branch(self, call: Callable[[], Any]) -> Awaitable[Any]:
        """Return the operation that is all that the function does, as a `partial` shows, or else a coroutine that calls it."""
        if isinstance(call, partial) and getattr(call.func, "__self__", None) is self and call.func.__name__ in _PLAIN:
            operation: Awaitable[Any] = getattr(self._context, call.func.__name__)(*call.args, **call.keywords)
            return operation
        return drive(call)

    # waiting

    def sleep(self, duration: Duration) -> None:
        """Wait for the duration, through restarts, without occupying a worker or a thread."""
        wait(self._operations.sleep(duration))

    def sleep_until(self, at: datetime) -> None:
        """Wait until the instant `at` (with a time zone), through restarts, without occupying a worker or a thread."""
        wait(self._operations.sleep_until(at))

    def approval(self, question: str, *, key: str | None = None, **request: Any) -> dict[str, Json]:
        """Ask people the `question`, as `FunctionContext.approval`, and return the decision."""
        return wait(self._operations.approval(question, key=key, **request))

    def continue_as_new(self, *args: Any, **kwargs: Any) -> None:
        """End this run and continue as a new run with that payload, as `FunctionContext.continue_as_new`; never returns."""
        wait(self._operations.continue_as_new(*args, **kwargs))

    # callers

    @overload
    def wait_for(self, signal: str, timeout: Duration | None = None) -> Json: ...
    @overload
    def wait_for(self, signal: str, timeout: Duration | None = None, *, type: type[R]) -> R: ...
    def wait_for(self, signal: str, timeout: Duration | None = None, *, type: Any = Any) -> Any:  # noqa: A002
        """Wait for the next signal of that name, as `FunctionContext.wait_for`, and return its payload."""
        return wait(self._operations.wait_for(signal, timeout, type=type))

    def read_stream(self, work: Ref, name: str, *, offset: int = 0) -> Iterator[StreamEntry]:
        """Read the stream `name` of a run or a task, as `FunctionContext.read_stream`, with a plain `for`."""
        return BlockingStreamReader(self._operations.read_stream(work, name, offset=offset))

    @overload
    def update(self, name: str, timeout: Duration | None = None) -> BlockingUpdate[Any]: ...
    @overload
    def update(self, name: str, timeout: Duration | None = None, *, type: type[R]) -> BlockingUpdate[R]: ...
    def update(self, name: str, timeout: Duration | None = None, *, type: Any = Any) -> Any:  # noqa: A002
        """Wait for the next update of that name, as `FunctionContext.update`; answer it with its `reply` or `reject`."""
        update = wait(self._operations.update(name, timeout, type=type))
        return BlockingUpdate(update._driver, update.id, update.name, update.value)


_PLAIN = frozenset({"approval", "call", "effect", "external", "sleep", "sleep_until", "step", "wait_for"})
"""The operations whose results are the same in sync and in async functions."""


def _checked(operation: str, calls: tuple[Any, ...]) -> tuple[Callable[[], Any], ...]:
    for call in calls:
        if not callable(call):
            raise InvalidInput(
                f"{operation} of a sync function takes functions, not {type_name(call)}: write `lambda: ctx.call(...)`."
            )
    return calls
