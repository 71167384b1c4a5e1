"""Stores in the transaction of a caller."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any

from treadle.kernel.store.ports import Store
from treadle.model.clock import Clock
from treadle.model.errors import Unsupported

if TYPE_CHECKING:
    import apsw

    from treadle.stores.postgres.borrowed.store import BorrowedStore
    from treadle.stores.sqlite.held.store import HeldStore


def borrowed_store(url: str, connection: Any, clock: Clock, *, notify: bool) -> BorrowedStore:
    """Return a store on the caller's connection to the PostgreSQL database of the URL."""
    if not url.startswith(("postgresql://", "postgres://")):
        raise Unsupported(
            "A SQLite file has one writer, which another connection cannot join: use `async with engine.transaction() as tx`, "
            "which runs your statements in Treadle's transaction."
        )
    from treadle.stores.postgres.borrowed.store import BorrowedStore

    return BorrowedStore(url, connection, clock=clock, notify=notify)


def held_store(store: Store, clock: Clock) -> AbstractAsyncContextManager[HeldStore]:
    """Hold one transaction of an open SQLite store."""
    from treadle.stores.sqlite import SqliteStore

    if not isinstance(store, SqliteStore):
        raise Unsupported(
            "On PostgreSQL, write in a transaction of your own connection: `engine.within(connection)`. `engine.transaction()` is "
            "for a SQLite file."
        )
    from treadle.stores.sqlite.held.store import hold

    return hold(store, clock)


def read_connection(store: Store) -> apsw.Connection:
    """Open a connection to the file of a SQLite store that cannot write."""
    from treadle.stores.sqlite import SqliteStore, connect_for_reading

    if not isinstance(store, SqliteStore) or store._database.path is None:
        raise Unsupported("read_connection() is for a SQLite file; read PostgreSQL with a connection of your own.")
    return connect_for_reading(store._database.path)
