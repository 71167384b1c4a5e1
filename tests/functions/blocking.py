"""Async functions of tests as sync ones, so that the same tests hold for both kinds.

The code stays as it is: each of its awaits calls a blocking operation.
"""

from __future__ import annotations

import functools
import inspect
import weakref
from collections.abc import Callable, Coroutine, Generator
from typing import Any

from treadle import BlockingFunctionContext
from treadle.workers.functions.registry import AWAITED
from treadle.workers.functions.sync import _PLAIN, BlockingChildRun, BlockingUpdate


class Later:
    """A blocking call that happens when it is awaited."""

    def __init__(self, call: Callable[[], Any], *, is_plain: bool = False) -> None:
        self.call, self.is_plain = call, is_plain

    def __await__(self) -> Generator[None, None, Any]:
        return awaitable(self.call())
        yield


class Awaited:
    """A blocking context, child or update, whose blocking methods are awaited."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._inner, name)
        if not inspect.ismethod(attribute) or name not in AWAITED | {"result", "reply", "reject"}:
            return attribute
        if name not in ("gather", "first"):
            return lambda *args, **kwargs: Later(functools.partial(attribute, *args, **kwargs), is_plain=name in _PLAIN)

        def group(*awaitables: Any, **options: Any) -> Later:
            named = {key: call_of(value) for key, value in options.items()}
            return Later(functools.partial(attribute, *map(call_of, awaitables), **named))

        return group


def awaitable(value: Any) -> Any:
    return Awaited(value) if isinstance(value, BlockingFunctionContext | BlockingChildRun | BlockingUpdate) else value


def call_of(value: Any) -> Any:
    """A function that awaits the value."""
    if isinstance(value, Later):
        return value.call if value.is_plain else lambda: awaitable(value.call())
    return Branch(value) if inspect.iscoroutine(value) else value


class Branch:
    """A function that executes the coroutine of a branch; a branch that is evicted before it begins never calls it."""

    def __init__(self, code: Coroutine[Any, Any, Any]) -> None:
        self._code = code
        weakref.finalize(self, code.close)  # a `__del__` may come after the coroutine's own finalizer, which would warn

    def __call__(self) -> Any:
        return completed(self._code)


def completed(code: Coroutine[Any, Any, Any]) -> Any:
    """The result of a coroutine that awaits blocking calls."""
    try:
        code.send(None)
    except StopIteration as end:
        return end.value
    code.close()
    raise AssertionError("The function awaits something else than ctx.")


def as_sync(fn: Callable[..., Coroutine[Any, Any, Any]]) -> Callable[..., Any]:
    """Return the async function as a sync one."""

    @functools.wraps(fn)
    def run(*args: Any, **kwargs: Any) -> Any:
        return completed(fn(*map(awaitable, args), **{name: awaitable(value) for name, value in kwargs.items()}))

    return run
