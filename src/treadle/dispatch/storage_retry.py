"""Storage failures: a call to the store is tried again after 1, 2 and 4 s, then the caller is told `STORAGE_ERROR` (D26)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from treadle.dispatch.errors import StorageError
from treadle.kernel.telemetry.events import Emit, StoreTrouble
from treadle.model.clock import Clock
from treadle.model.errors import StoreError

DELAYS = (1.0, 2.0, 4.0)
"""Seconds before each further try."""

T = TypeVar("T")


class Patience:
    """Tries what it is given, which must be safe to do twice: nothing is known about a commit whose answer was lost."""

    def __init__(self, clock: Clock, emit: Emit) -> None:
        self._clock = clock
        self._emit = emit

    async def __call__(self, doing: str, work: Callable[[], Awaitable[T]]) -> T:
        """The answer, or `StorageError` after the last try; errors that are not the store's are raised at once."""
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
