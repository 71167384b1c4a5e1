"""Facts about the database for operators, and backups."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import closing
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

import apsw

from treadle.kernel.store.database import Port, reads
from treadle.model.errors import Refused, StoreDamaged, StoreError
from treadle.stores.sqlite.connection.commits import find_missing, forget
from treadle.stores.sqlite.connection.connect import connect, read_row, read_value, reading, refuse_writes, translated
from treadle.stores.sqlite.connection.schema import read_version
from treadle.stores.sqlite.database import SqliteDatabase, SqliteSession
from treadle.stores.statements import load_statements

if TYPE_CHECKING:
    from treadle.api.store import StoreHealth

_SQL = load_statements(__package__, "health.sql")

SIZES_UP_TO = 2 * 1024**3
"""The size in bytes up to which `health` measures tables, because that reads the whole file."""


class SqliteHealth(Port):
    """The `HealthStore` of SQLite."""

    _database: SqliteDatabase

    @reads
    async def describe(self, session: SqliteSession) -> dict[str, object]:
        connection = session.connection
        pages, page_size = connection.pragma("page_count"), connection.pragma("page_size")
        live, finished = read_row(connection, _SQL["count_rows"])
        described: dict[str, object] = {
            "kind": "sqlite",
            "library": f"SQLite {apsw.sqlite_lib_version()}",
            "schema_version": read_version(connection),
            "path": self._database.path,
            "journal_mode": connection.pragma("journal_mode"),
            "page_count": pages,
            "page_size": page_size,
            "free_pages": connection.pragma("freelist_count"),
            "file_size": pages * page_size if self._database.path is None else _size(self._database.path),
            "live_tasks": live,
            "finished_tasks": finished,
        }
        if self._database.path is not None:
            described["wal_size"] = _size(f"{self._database.path}-wal") or 0
        return described

    @reads
    async def overdue_for(self, session: SqliteSession) -> int:
        return _overdue_for(session)

    @reads
    async def check(self, session: SqliteSession) -> StoreHealth:
        connection = session.connection
        from treadle.api.store import StoreHealth, StoreTable

        pages, page_size = connection.pragma("page_count"), connection.pragma("page_size")
        tables: list[StoreTable] = []
        if pages * page_size <= SIZES_UP_TO:
            tables = [StoreTable(name, size, None, None, None) for name, size in connection.execute(_SQL["list_tables"])]
        return StoreHealth(
            tables=tables,
            overdue_for=_overdue_for(session),
            versions={"sqlite": apsw.sqlite_lib_version(), "apsw": apsw.apsw_version()},
            settings={
                "journal_mode": str(connection.pragma("journal_mode")),
                "auto_vacuum": ("none", "full", "incremental")[connection.pragma("auto_vacuum")],
            },
            bytes=pages * page_size,
            free_bytes=connection.pragma("freelist_count") * page_size,
            wal_bytes=None if self._database.path is None else _size(f"{self._database.path}-wal"),
            oldest_snapshot_for=None,
            snapshot_by=None,
            findings=[],
        )

    async def list_damage(self, *, pages: bool = True) -> list[str]:
        return [] if self._database.path is None else await asyncio.to_thread(list_damage, self._database.path, pages=pages)

    async def accept_damage(self) -> str | None:
        return None if self._database.path is None else forget(self._database.path)

    async def backup(self, path: str) -> int:
        return await self._database.reader.call(lambda connection: back_up(connection, path))


def _overdue_for(session: SqliteSession) -> int:
    first = read_value(session.connection, _SQL["find_overdue"])
    return 0 if first is None else max(session.now - first, 0)


def back_up(connection: apsw.Connection, path: str) -> int:
    """Copy the database to a file that appears only when it is complete; return its size in bytes."""
    target = Path(path)
    if target.exists():
        raise Refused(f"There is something at {target} already; name a file that does not exist.")
    if not target.absolute().parent.is_dir():
        raise Refused(f"There is no directory {target.absolute().parent}; create it first.")
    partial = target.with_name(f"{target.name}.partial")
    partial.unlink(missing_ok=True)
    copy = connect(str(partial))
    try:
        try:
            with copy.backup("main", connection, "main") as copying:
                while not copying.done:
                    copying.step(-1)
            copy.pragma("journal_mode", "delete")
            verdict = copy.pragma("quick_check")
        finally:
            copy.close()
        if verdict != "ok":
            raise StoreError(
                f"The copy is damaged ({verdict}), and so may be the database: check its disk. Nothing was left behind."
            )
        partial.rename(target)
        forget(str(target))  # notes of an earlier file there
    finally:
        partial.unlink(missing_ok=True)
    return target.stat().st_size


def _size(path: str) -> int | None:
    place = Path(path)
    return place.stat().st_size if place.exists() else None


_DAMAGE = load_statements(__package__, "damage.sql")
_DAMAGE_LIMIT = 20


def list_damage(path: str, *, pages: bool) -> list[str]:
    """Return one line for each sign of damage, on a connection of its own: it can take long, and other reads go on meanwhile."""
    damage: list[str] = []
    try:
        with translated(path), closing(connect(path, create=False)) as connection:
            refuse_writes(connection)
            if (missing := find_missing(connection, path)) is not None:
                damage.append(missing)
            if pages:
                with reading(connection):
                    damage += [f"{path} is damaged: {line}" for line in _check(connection)]
    except StoreDamaged as error:
        damage.append(str(error))
    return damage


def _check(connection: apsw.Connection) -> Iterator[str]:
    broken = False
    for (line,) in connection.execute(_DAMAGE["check_pages"]):
        if line != "ok":
            broken = True
            yield " ".join(str(line).split())
    if not broken:
        for number, line in enumerate(_check_texts(connection)):
            if number == _DAMAGE_LIMIT:
                break
            yield line


def _check_texts(connection: apsw.Connection) -> Iterator[str]:
    for table, key, stored in connection.execute(_DAMAGE["list_texts"]):
        what = f"the row {key} of {table}"
        try:
            text = bytes(stored).decode()
        except UnicodeDecodeError:
            yield f"{what} has text that is not UTF-8"
            continue
        if "\x00" in text:
            yield f"{what} has text with zeros"
        elif table == "blobs" and not text.startswith("@") and sha256(stored).hexdigest() != key:
            yield f"{what} has a value that does not match its digest"
