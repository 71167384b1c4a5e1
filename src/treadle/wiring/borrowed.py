"""Stores in the transaction of a caller."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from treadle.model.clock import Clock
from treadle.model.errors import Unsupported

if TYPE_CHECKING:
    from treadle.stores.postgres.borrowed.store import BorrowedStore


def borrowed_store(url: str, connection: Any, clock: Clock, *, notify: bool) -> BorrowedStore:
    """Return a store on the caller's connection to the PostgreSQL database of the URL."""
    if not url.startswith(("postgresql://", "postgres://")):
        raise Unsupported(
            "A SQLite file has one writer, which another connection cannot join: use `async with engine.transaction() as tx`, "
            "which runs your statements in Treadle's transaction."
        )
    from treadle.stores.postgres.borrowed.store import BorrowedStore

    return BorrowedStore(url, connection, clock=clock, notify=notify)
