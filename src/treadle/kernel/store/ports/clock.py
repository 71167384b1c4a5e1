"""The clock of a store, which every port offers."""

from __future__ import annotations

from typing import Protocol


class StoreClock(Protocol):
    """The clock that compares leases, deadlines and retention times."""

    async def now(self) -> int:
        """Return the store's clock, in milliseconds."""
