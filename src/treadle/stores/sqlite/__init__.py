"""The SQLite store: one file (or memory), no server, several processes on one machine."""

from __future__ import annotations

from treadle.stores.sqlite.store import SqliteStore

__all__ = ["SqliteStore"]
