"""Connections to the database, set up alike; and the one way to write through them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from threading import Event
from typing import Any, TypeVar

import apsw

from treadle.model.errors import StoreReadOnly
from treadle.stores.statements import load_statements

BUSY_FOR = 5_000
"""Milliseconds that a connection waits for the lock of another process before it gives up."""

_SQL = load_statements(__package__, "connection.sql")
_SHAPES = load_statements(__package__, "shapes.sql")
_BEGIN, _COMMIT, _ROLLBACK = _SQL["begin"], _SQL["commit"], _SQL["rollback"]
_BEGIN_READING = _SQL["begin_reading"]
_DATA_VERSION = _SQL["read_data_version"]
_STEPS = (0.001, 0.01)
_SHORT_STEPS = 500
T = TypeVar("T")


def connect(path: str | None, *, create: bool = True) -> apsw.Connection:
    """A connection that has changed nothing yet; None is a new database in memory."""
    flags = apsw.SQLITE_OPEN_READWRITE | (apsw.SQLITE_OPEN_CREATE if create else 0)
    connection = apsw.Connection(path or ":memory:", flags=flags, statementcachesize=200)
    connection.set_busy_handler(wait_for_lock)
    if connection.readonly("main"):
        connection.close()
        raise StoreReadOnly(f"{path} cannot be written by this user. Give it write access, or choose another path.")
    connection.execute(_SQL["check_references"])
    connection.execute(_SQL["keep_temporary_in_memory"])
    connection.execute(_SQL["enlarge_cache"])
    return connection


def wait_for_lock(tries: int) -> bool:
    """Whether to try again for a lock that another process holds, after a moment.

    SQLite's own way waits longer and longer; against a process that commits without pause, it hardly ever gets its turn.
    """
    step = _STEPS[tries >= _SHORT_STEPS]
    waited = tries * _STEPS[0] if tries < _SHORT_STEPS else _SHORT_STEPS * _STEPS[0] + (tries - _SHORT_STEPS) * _STEPS[1]
    if waited * 1000 >= BUSY_FOR:
        return False
    Event().wait(step)
    return True


def make_shrinkable(connection: apsw.Connection) -> None:
    """A file that has nothing in it yet will be able to give free pages back; says nothing to others."""
    connection.execute(_SQL["shrink_in_steps"])


def make_durable(connection: apsw.Connection) -> None:
    """Write-ahead log, every commit synced; checkpoints are ours alone."""
    tries = 0
    while True:
        try:
            connection.execute(_SQL["use_wal"]).fetchall()
            break
        except apsw.BusyError:
            # SQLite does not wait here by itself when another process is doing the same.
            if not wait_for_lock(tries):
                raise
            tries += 1
    connection.execute(_SQL["sync_every_commit"])
    connection.wal_autocheckpoint(0)


def add_shapes(connection: apsw.Connection) -> None:
    """The views that give rows as JSON; they belong to the connection and are not stored."""
    for view in _SHAPES.values():
        connection.execute(view)


def refuse_writes(connection: apsw.Connection) -> None:
    """From now on the connection only reads."""
    connection.execute(_SQL["refuse_writes"])


def data_version(connection: apsw.Connection) -> int:
    """A number that changes whenever another connection has changed the database; costs a few microseconds."""
    return int(read_value(connection, _DATA_VERSION))


def read_row(connection: apsw.Connection, statement: str, values: Mapping[str, Any] | None = None) -> tuple[Any, ...]:
    """The only row of the answer."""
    (row,) = connection.execute(statement, values).fetchall()
    return row


def read_value(connection: apsw.Connection, statement: str, values: Mapping[str, Any] | None = None) -> Any:
    """The only value of the answer: one step of the database, so that a busy interpreter is waited for only once."""
    ((value,),) = connection.execute(statement, values).fetchall()
    return value


def find_value(connection: apsw.Connection, statement: str, values: Mapping[str, Any] | None = None) -> Any:
    """The only value of the answer, or None if there is no row."""
    found = connection.execute(statement, values).fetchall()
    return found[0][0] if found else None


def fetch_as(connection: apsw.Connection, kind: type[T], statement: str, values: Mapping[str, Any]) -> list[T]:
    """Rows as records whose fields are the columns."""
    cursor = connection.execute(statement, values)
    names: list[str] = []
    found = []
    for row in cursor:
        if not names:  # known only while there are rows
            names = [column[0] for column in cursor.description]
        found.append(kind(**dict(zip(names, row, strict=True))))
    return found


@contextmanager
def writing(connection: apsw.Connection) -> Iterator[None]:
    """What happens inside is durable after it, or has not happened at all."""
    connection.execute(_BEGIN)
    try:
        yield
        connection.execute(_COMMIT)
    except BaseException:
        if connection.in_transaction:
            connection.execute(_ROLLBACK)
        raise


@contextmanager
def reading(connection: apsw.Connection) -> Iterator[None]:
    """All that is read inside is of one moment."""
    connection.execute(_BEGIN_READING)
    try:
        yield
    finally:
        connection.execute(_ROLLBACK)
