"""The types of the decorators that register code: from the parameters of the code, without `ctx`, to a typed reference.

A context that comes first (`(ctx, order, copies=1)`) keeps the names of the other parameters for the type checker; one that
comes last keeps only their order.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, ClassVar, Concatenate, ParamSpec, Protocol, TypeVar, Unpack, overload

import msgspec

from treadle.model.outcomes import AwaitingApproval, Failed, Paused, Retry, Succeeded, Waiting
from treadle.workers.context import BatchHandlerOptions, Context, HandlerOptions
from treadle.workers.functions.context import FunctionContext
from treadle.workers.functions.registry import RegistrationOptions
from treadle.workers.functions.sync import BlockingFunctionContext
from treadle.workers.references import Function, Handler

P = ParamSpec("P")
A = TypeVar("A")
B = TypeVar("B")
R = TypeVar("R")


class _Dataclass(Protocol):
    __dataclass_fields__: ClassVar[dict[str, Any]]


class _Model(Protocol):
    model_config: ClassVar[Any]


_Outcome = Succeeded | Retry | Failed | Waiting | AwaitingApproval | Paused
Result = TypeVar("Result", bound=Mapping[str, Any] | _Dataclass | _Model | msgspec.Struct | _Outcome | None)
"""The result of a handler: an object, an outcome or None."""
_Payload = dict[str, Any]
_Given = Mapping[str, Any]


class BatchDecorator(Protocol):
    """Registers a batch handler: sync or async code from a list of payloads to a list of results, outcomes and exceptions."""

    @overload
    def __call__(
        self, fn: Callable[[list[_Payload]], Coroutine[Any, Any, Sequence[Result | Exception]]], /
    ) -> Handler[[_Given], Result]: ...
    @overload
    def __call__(self, fn: Callable[[list[A]], Coroutine[Any, Any, Sequence[Result | Exception]]], /) -> Handler[[A], Result]: ...
    @overload
    def __call__(
        self, fn: Callable[[list[A], list[Context]], Coroutine[Any, Any, Sequence[Result | Exception]]], /
    ) -> Handler[[A], Result]: ...
    @overload
    def __call__(self, fn: Callable[[list[_Payload]], Sequence[Result | Exception]], /) -> Handler[[_Given], Result]: ...
    @overload
    def __call__(self, fn: Callable[[list[A]], Sequence[Result | Exception]], /) -> Handler[[A], Result]: ...
    @overload
    def __call__(self, fn: Callable[[list[A], list[Context]], Sequence[Result | Exception]], /) -> Handler[[A], Result]: ...


class HandlerDecorator(Protocol):
    """Registers a handler: sync or async code that returns an object."""

    @overload
    def __call__(self, name: str | None = None, /, *, batch: int, **options: Unpack[BatchHandlerOptions]) -> BatchDecorator: ...
    @overload
    def __call__(self, name: str | None = None, /, **options: Unpack[HandlerOptions]) -> HandlerDecorator: ...
    @overload
    def __call__(self, fn: Callable[[_Payload, Context], Coroutine[Any, Any, Result]], /) -> Handler[[_Given], Result]: ...
    @overload
    def __call__(self, fn: Callable[[_Payload], Coroutine[Any, Any, Result]], /) -> Handler[[_Given], Result]: ...
    @overload
    def __call__(self, fn: Callable[[A, Context], Coroutine[Any, Any, Result]], /) -> Handler[[A], Result]: ...
    @overload
    def __call__(self, fn: Callable[[A, B, Context], Coroutine[Any, Any, Result]], /) -> Handler[[A, B], Result]: ...
    @overload
    def __call__(self, fn: Callable[Concatenate[Context, P], Coroutine[Any, Any, Result]], /) -> Handler[P, Result]: ...
    @overload
    def __call__(self, fn: Callable[P, Coroutine[Any, Any, Result]], /) -> Handler[P, Result]: ...
    @overload
    def __call__(self, fn: Callable[[_Payload, Context], Result], /) -> Handler[[_Given], Result]: ...
    @overload
    def __call__(self, fn: Callable[[_Payload], Result], /) -> Handler[[_Given], Result]: ...
    @overload
    def __call__(self, fn: Callable[[A, Context], Result], /) -> Handler[[A], Result]: ...
    @overload
    def __call__(self, fn: Callable[[A, B, Context], Result], /) -> Handler[[A, B], Result]: ...
    @overload
    def __call__(self, fn: Callable[Concatenate[Context, P], Result], /) -> Handler[P, Result]: ...
    @overload
    def __call__(self, fn: Callable[P, Result], /) -> Handler[P, Result]: ...


class TaskDecorator(Protocol):
    """Registers a task: sync or async code that returns any supported value."""

    @overload
    def __call__(self, name: str | None = None, /, **options: Unpack[HandlerOptions]) -> TaskDecorator: ...
    @overload
    def __call__(self, fn: Callable[[A, Context], Coroutine[Any, Any, R]], /) -> Handler[[A], R]: ...
    @overload
    def __call__(self, fn: Callable[[A, B, Context], Coroutine[Any, Any, R]], /) -> Handler[[A, B], R]: ...
    @overload
    def __call__(self, fn: Callable[Concatenate[Context, P], Coroutine[Any, Any, R]], /) -> Handler[P, R]: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, fn: Callable[P, Coroutine[Any, Any, R]], /) -> Handler[P, R]: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, fn: Callable[[A, Context], R], /) -> Handler[[A], R]: ...
    @overload
    def __call__(self, fn: Callable[[A, B, Context], R], /) -> Handler[[A, B], R]: ...
    @overload
    def __call__(self, fn: Callable[Concatenate[Context, P], R], /) -> Handler[P, R]: ...
    @overload
    def __call__(self, fn: Callable[P, R], /) -> Handler[P, R]: ...


class FunctionDecorator(Protocol):
    """Registers a durable function: sync or async code."""

    @overload
    def __call__(self, name: str | None = None, /, **options: Unpack[RegistrationOptions]) -> FunctionDecorator: ...
    @overload
    def __call__(self, fn: Callable[[_Payload, FunctionContext], Coroutine[Any, Any, R]], /) -> Function[[_Given], R]: ...
    @overload
    def __call__(self, fn: Callable[[_Payload], Coroutine[Any, Any, R]], /) -> Function[[_Given], R]: ...
    @overload
    def __call__(self, fn: Callable[[A, FunctionContext], Coroutine[Any, Any, R]], /) -> Function[[A], R]: ...
    @overload
    def __call__(self, fn: Callable[[A, B, FunctionContext], Coroutine[Any, Any, R]], /) -> Function[[A, B], R]: ...
    @overload
    def __call__(self, fn: Callable[Concatenate[FunctionContext, P], Coroutine[Any, Any, R]], /) -> Function[P, R]: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, fn: Callable[P, Coroutine[Any, Any, R]], /) -> Function[P, R]: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, fn: Callable[[_Payload, BlockingFunctionContext], R], /) -> Function[[_Given], R]: ...
    @overload
    def __call__(self, fn: Callable[[_Payload], R], /) -> Function[[_Given], R]: ...
    @overload
    def __call__(self, fn: Callable[[A, BlockingFunctionContext], R], /) -> Function[[A], R]: ...
    @overload
    def __call__(self, fn: Callable[[A, B, BlockingFunctionContext], R], /) -> Function[[A, B], R]: ...
    @overload
    def __call__(self, fn: Callable[Concatenate[BlockingFunctionContext, P], R], /) -> Function[P, R]: ...
    @overload
    def __call__(self, fn: Callable[P, R], /) -> Function[P, R]: ...
