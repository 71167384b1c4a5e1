"""Storage failures: a store call is retried after 1, 2 and 4 s, then raises `STORAGE_ERROR` (D26)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from treadle.dispatch.errors import StorageError
from treadle.kernel.telemetry.events import Emit, StoreTrouble
from treadle.model.clock import Clock
from treadle.model.errors import StoreError

DELAYS = (1.0, 2.0, 4.0)
"""Seconds before each retry."""

T = TypeVar("T")


class StorageRetry:
    """Retries idempotent calls: a commit without a response may have been applied."""

    def __init__(self, clock: Clock, emit: Emit) -> None:
        self._clock = clock
        self._emit = emit

    async def __call__(self, doing: str, work: Callable[[], Awaitable[T]]) -> T:
        """Return the response, or raise `StorageError` after the last retry; other errors are raised immediately."""
        for delay in DELAYS:
            try:
                return await work()
            except StoreError as error:
                self._emit(StoreTrouble(doing, str(error), delay))
            await self._clock.sleep(delay)
        try:
            return await work()
        except StoreError as error:
            raise StorageError(doing, len(DELAYS) + 1, error) from error
