"""The difference between an exception of user code and the end of the coroutine that calls it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any


def stops_caller(error: BaseException) -> bool:
    """Return whether the exception stops the calling coroutine itself: its task is canceled, or the coroutine is closed.

    Any other exception, including `KeyboardInterrupt` and a `CancelledError` of an awaitable inside, comes from user code.
    """
    if not isinstance(error, asyncio.CancelledError | GeneratorExit):
        return False
    try:
        task = asyncio.current_task()
    except RuntimeError:
        return True
    return task is None or (isinstance(error, asyncio.CancelledError) and task.cancelling() > 0)


def origin(error: BaseException) -> BaseException:
    """Return the exception that user code raised: Python replaces a `StopIteration` that leaves a coroutine."""
    return error.__cause__ if isinstance(error, RuntimeError) and isinstance(error.__cause__, StopIteration) else error


class _Raised:
    """An exception of a call in a thread: a future cannot transport each, e.g. not `StopIteration`."""

    __slots__ = ("error",)

    def __init__(self, error: BaseException) -> None:
        self.error = error


def caught(call: Callable[..., Any], *arguments: Any) -> Any:
    """Call user code in a thread; `result_of` returns its result, or raises its exception, in the awaiting coroutine."""
    try:
        return call(*arguments)
    except BaseException as error:
        return _Raised(error)


def result_of(returned: Any) -> Any:
    """Return the result of a call made by `caught`, or raise its exception."""
    if isinstance(returned, _Raised):
        raise returned.error
    return returned
