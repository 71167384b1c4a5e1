"""Calls of the store that a canceled caller must not interrupt, because their result would be lost after the commit."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

WITHIN = 5.0
"""Seconds that a canceled caller waits for the call; a store that does not answer must not keep it."""


async def uninterrupted(call: Awaitable[T], undo: Callable[[T], Coroutine[Any, Any, None]] | None = None) -> T:
    """Return the result of the call. A cancellation is raised after its end, and after `undo` with the result."""
    calling = asyncio.ensure_future(call)
    try:
        return await asyncio.shield(calling)
    except asyncio.CancelledError:
        if calling.cancelled():
            raise
        await asyncio.wait({asyncio.create_task(_finish(calling, undo))}, timeout=WITHIN)
        raise


async def _finish(calling: asyncio.Future[T], undo: Callable[[T], Coroutine[Any, Any, None]] | None) -> None:
    try:
        result = await calling
        if undo is not None:
            await undo(result)
    except Exception:  # noqa: S110 - nobody waits for the result; the lease expires
        pass
