"""How the database is doing: sizes, what is overdue, what is risky about the file."""

from __future__ import annotations

from pathlib import Path

import apsw

from treadle.kernel.store.queries import Health, TableHealth
from treadle.model.errors import Refused, StoreError
from treadle.stores.sqlite.connection import connect, read_value
from treadle.stores.statements import load_statements

_SQL = load_statements(__package__, "health.sql")

SIZES_UP_TO = 2 * 1024**3
"""Bytes of a file up to which its tables are measured, as that reads all of it."""


def health(connection: apsw.Connection, path: str | None, now: int) -> Health:
    """What can be seen from one connection."""
    pages, page_size = connection.pragma("page_count"), connection.pragma("page_size")
    tables: tuple[TableHealth, ...] = ()
    if pages * page_size <= SIZES_UP_TO:
        tables = tuple(TableHealth(name, size) for name, size in connection.execute(_SQL["list_tables"]))
    wal = None if path is None else Path(f"{path}-wal")
    return Health(
        tables=tables,
        overdue_for=overdue_for(connection, now),
        versions={"sqlite": apsw.sqlite_lib_version(), "apsw": apsw.apsw_version()},
        settings={
            "journal_mode": str(connection.pragma("journal_mode")),
            "auto_vacuum": ("none", "full", "incremental")[connection.pragma("auto_vacuum")],
        },
        bytes=pages * page_size,
        free_bytes=connection.pragma("freelist_count") * page_size,
        wal_bytes=wal.stat().st_size if wal is not None and wal.exists() else None,
    )


def overdue_for(connection: apsw.Connection, now: int) -> int:
    """For how many milliseconds the first due `wake_at` has been due."""
    first = read_value(connection, _SQL["find_overdue"])
    return 0 if first is None else max(now - first, 0)


def backup(source: apsw.Connection, path: Path) -> int:
    """A copy of the database as it is now, in a file that is not there before it is whole; its bytes."""
    if path.exists():
        raise Refused(f"There is something at {path} already; name a file that does not exist.")
    if not path.absolute().parent.is_dir():
        raise Refused(f"There is no directory {path.absolute().parent}; create it first.")
    partial = path.with_name(f"{path.name}.partial")
    partial.unlink(missing_ok=True)
    copy = connect(str(partial))
    try:
        try:
            with copy.backup("main", source, "main") as copying:
                while not copying.done:
                    copying.step(-1)
            copy.pragma("journal_mode", "delete")
            found = copy.pragma("quick_check")
        finally:
            copy.close()
        if found != "ok":
            raise StoreError(f"The copy is damaged ({found}), and so may be the database: check its disk. Nothing was left behind.")
        partial.rename(path)
    finally:
        partial.unlink(missing_ok=True)
    return path.stat().st_size
