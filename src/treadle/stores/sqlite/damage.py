"""Damage below the rows: missing commits, damaged pages, and texts that differ from the stored ones.

SQLite finds damage to the structure of a file. A page that holds only text has none; text that is not UTF-8 or has zeros, and
a large value that does not match its digest, are damage, too. A changed letter in a small value remains unnoticed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from hashlib import sha256

import apsw

from treadle.model.errors import StoreDamaged
from treadle.stores.sqlite.connection.commits import find_missing
from treadle.stores.sqlite.connection.connect import connect, reading, refuse_writes
from treadle.stores.sqlite.connection.errors import translated
from treadle.stores.statements import load_statements

_SQL = load_statements(__package__, "damage.sql")
_AT_MOST = 20


def list_damage(path: str, *, pages: bool) -> list[str]:
    """Return one line for each sign of damage, on a connection of its own: it can take long, and other reads go on meanwhile."""
    found: list[str] = []
    try:
        with translated(path), closing(connect(path, create=False)) as connection:
            refuse_writes(connection)
            if (missing := find_missing(connection, path)) is not None:
                found.append(missing)
            if pages:
                with reading(connection):
                    found += [f"{path} is damaged: {line}" for line in _check(connection)]
    except StoreDamaged as error:
        found.append(str(error))
    return found


def _check(connection: apsw.Connection) -> Iterator[str]:
    broken = False
    for (line,) in connection.execute(_SQL["check_pages"]):
        if line != "ok":
            broken = True
            yield " ".join(str(line).split())
    if not broken:
        for number, line in enumerate(_check_texts(connection)):
            if number == _AT_MOST:
                break
            yield line


def _check_texts(connection: apsw.Connection) -> Iterator[str]:
    for table, key, stored in connection.execute(_SQL["list_texts"]):
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
