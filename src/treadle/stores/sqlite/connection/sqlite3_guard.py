"""Keeps Python's `sqlite3` away from files that a store of this process has open.

`sqlite3` and `apsw` are two copies of SQLite. A process has one set of POSIX locks per file: when one copy closes the file, the
locks of the other are gone, and a write-ahead log that is in use may be deleted. Connections of other processes are safe.
"""

from __future__ import annotations

import os
import sys
from functools import cache
from pathlib import Path
from urllib.parse import unquote, urlsplit

import apsw

from treadle.model.errors import StoreFileInUse


@cache
def install() -> None:
    """Check every `sqlite3.connect` of this process from now on; Python offers no way to remove such a hook."""
    sys.addaudithook(_check)


def _check(event: str, arguments: tuple[object, ...]) -> None:
    if event != "sqlite3.connect":
        return
    wanted = _identity(_path_of(arguments[0]))
    if wanted is None:
        return
    for connection in apsw.connections():
        if wanted == _identity(connection.filename):
            raise StoreFileInUse(
                f"This process has the store {connection.filename} open: a connection of Python's sqlite3 to the same file could "
                "lose stored work. Use engine.kernel.read_connection() or treadle.stores.sqlite.connect_for_reading(PATH), or read "
                "the file from another process; to write your own tables, use engine.transaction()."
            )


def _path_of(database: object) -> str:
    """Return the path that `sqlite3.connect` was given as text, bytes, a path or a `file:` URI."""
    text = os.fsdecode(database) if isinstance(database, str | bytes | os.PathLike) else ""
    return unquote(urlsplit(text).path) if text.startswith("file:") else text


def _identity(path: str) -> tuple[int, int] | None:
    """Return the device and inode of a file; None if there is no such file."""
    try:
        found = Path(path).stat() if path and path != ":memory:" else None
    except (OSError, ValueError):
        return None
    return None if found is None else (found.st_dev, found.st_ino)
