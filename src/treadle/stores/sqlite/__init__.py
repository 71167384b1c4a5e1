"""The SQLite store: one file (or memory), no server, several processes on one machine."""

from __future__ import annotations

from treadle.stores.sqlite.connection.connect import connect_for_reading
from treadle.stores.sqlite.store import SqliteStore

__all__ = ["SqliteStore", "connect_for_reading"]
