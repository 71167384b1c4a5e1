"""What the database is, for people: versions, modes, sizes."""

from __future__ import annotations

from pathlib import Path

import apsw

from treadle.stores.sqlite.reads import count_rows
from treadle.stores.sqlite.schema import read_version


def describe(connection: apsw.Connection, path: str | None) -> dict[str, object]:
    """Names and values; sizes are in bytes and, for a database in memory, those of its pages."""
    pages, page_size = connection.pragma("page_count"), connection.pragma("page_size")
    live, finished = count_rows(connection)
    described: dict[str, object] = {
        "kind": "sqlite",
        "library": f"SQLite {apsw.sqlite_lib_version()}",
        "schema_version": read_version(connection),
        "path": path,
        "journal_mode": connection.pragma("journal_mode"),
        "page_count": pages,
        "page_size": page_size,
        "free_pages": connection.pragma("freelist_count"),
        "file_size": pages * page_size if path is None else _size(Path(path)),
        "live_tasks": live,
        "finished_tasks": finished,
    }
    if path is not None:
        described["wal_size"] = _size(Path(f"{path}-wal"))
    return described


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
