"""The difference between an exception of user code and the end of the coroutine that calls it."""

from __future__ import annotations

import asyncio


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
