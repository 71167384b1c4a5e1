"""Open and configure connections, read values through them, and run transactions."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from threading import Event
from typing import TYPE_CHECKING, Any, TypeVar

import apsw
import msgspec

from treadle.model.errors import StoreReadOnly
from treadle.stores.sqlite.connection import sqlite3_guard
from treadle.stores.statements import load_statements

if TYPE_CHECKING:
    from treadle.stores.sqlite.connection.commits import CommitCounter

BUSY_FOR = 5_000
"""Milliseconds that a connection waits for a lock of another process before it gives up."""

_SQL = load_statements(__package__, "connect.sql")
_SHAPES = load_statements(__package__, "shapes.sql")
_BEGIN, _COMMIT, _ROLLBACK = _SQL["begin"], _SQL["commit"], _SQL["rollback"]
_BEGIN_READING = _SQL["begin_reading"]
_STEPS = (0.001, 0.01)
_SHORT_STEPS = 500
T = TypeVar("T")

_encode = msgspec.json.Encoder().encode


def to_json(value: object) -> str:
    """Return the value as JSON text, the form in which statements receive many rows."""
    return _encode(value).decode()


class Connection(apsw.Connection):
    """A connection; the one that writes to a file counts its commits."""

    counter: CommitCounter | None = None


def connect(path: str | None, *, create: bool = True) -> Connection:
    """Open a connection without changing the database; None opens a new database in memory.

    A new file is readable and writable by its owner only.
    """
    if path is not None:
        sqlite3_guard.install()
    if path is not None and create:
        # SQLite reports why the file cannot be created; its -wal and -shm files get the same mode. An existing file must not be
        # opened here: closing it would drop the locks of this process, and another process could then delete a log in use.
        with suppress(OSError):
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600))
    flags = apsw.SQLITE_OPEN_READWRITE | (apsw.SQLITE_OPEN_CREATE if create else 0)
    connection = Connection(path or ":memory:", flags=flags, statementcachesize=200)
    connection.set_busy_handler(wait_for_lock)
    # Otherwise the planner looks at the values of a statement, so that SQLite prepares it again each time they are bound.
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
    if connection.readonly("main"):
        connection.close()
        raise StoreReadOnly(f"{path} cannot be written by this user. Give it write access, or choose another path.")
    connection.execute(_SQL["check_references"])
    connection.execute(_SQL["keep_temporary_in_memory"])
    connection.execute(_SQL["enlarge_cache"])
    return connection


def connect_for_reading(path: str | os.PathLike[str]) -> apsw.Connection:
    """Open a read-only connection to a store's file; it is safe while this process has the store open.

    for name, state in connect_for_reading("treadle.db").execute("select name, state from tasks"):
        print(name, state)
    """
    connection = apsw.Connection(os.fspath(path), flags=apsw.SQLITE_OPEN_READONLY)
    connection.set_busy_handler(wait_for_lock)
    return connection


def wait_for_lock(tries: int) -> bool:
    """Sleep briefly and return whether to try again for a lock that another process holds.

    SQLite's own busy handler backs off; against a process that commits without pause, it rarely gets the lock.
    """
    step = _STEPS[tries >= _SHORT_STEPS]
    waited = tries * _STEPS[0] if tries < _SHORT_STEPS else _SHORT_STEPS * _STEPS[0] + (tries - _SHORT_STEPS) * _STEPS[1]
    if waited * 1000 >= BUSY_FOR:
        return False
    Event().wait(step)
    return True


def make_shrinkable(connection: apsw.Connection) -> None:
    """Let an empty file return free pages later; a no-op for other files."""
    connection.execute(_SQL["shrink_in_steps"])


def make_durable(connection: apsw.Connection) -> None:
    """Use a write-ahead log and sync every commit; only our own code runs checkpoints."""
    tries = 0
    while True:
        try:
            connection.execute(_SQL["use_wal"]).fetchall()
            break
        except apsw.BusyError:
            # SQLite does not wait here when another process does the same.
            if not wait_for_lock(tries):
                raise
            tries += 1
    connection.execute(_SQL["sync_every_commit"])
    connection.wal_autocheckpoint(0)


def add_shapes(connection: apsw.Connection) -> None:
    """Create the views that return rows as JSON; they belong to the connection and are not stored."""
    for view in _SHAPES.values():
        connection.execute(view)


def has_shapes(connection: apsw.Connection) -> bool:
    """Return whether the connection has these views."""
    return bool(read_value(connection, _SQL["count_shapes"]))


def remove_shapes(connection: apsw.Connection) -> None:
    """Remove these views, which would hide tables of the same names."""
    for name in _SHAPES:
        connection.execute(f"drop view temp.{name}")


def refuse_writes(connection: apsw.Connection) -> None:
    """Make the connection read-only."""
    connection.execute(_SQL["refuse_writes"])


def read_row(connection: apsw.Connection, statement: str, values: Mapping[str, Any] | None = None) -> tuple[Any, ...]:
    """Return the only row of the result."""
    (row,) = connection.execute(statement, values).fetchall()
    return row


def read_value(connection: apsw.Connection, statement: str, values: Mapping[str, Any] | None = None) -> Any:
    """Return the only value of the result: one step of the database, which waits for a busy interpreter only once."""
    ((value,),) = connection.execute(statement, values).fetchall()
    return value


def fetch_as(connection: apsw.Connection, kind: type[T], statement: str, values: Mapping[str, Any]) -> list[T]:
    """Return rows as records with the columns as fields."""
    cursor = connection.execute(statement, values)
    names: list[str] = []
    found = []
    for row in cursor:
        if not names:  # the cursor has them only while there are rows
            names = [column[0] for column in cursor.description]
        found.append(kind(**dict(zip(names, row, strict=True))))
    return found


def writing(connection: apsw.Connection) -> AbstractContextManager[object]:
    """Run the block as one durable transaction, or as a savepoint of a held transaction; roll it back if it raises."""
    return connection if connection.in_transaction else _transaction(connection)


@contextmanager
def _transaction(connection: apsw.Connection) -> Iterator[None]:
    """Begin and commit; count the commit if it changed something."""
    counter = connection.counter if isinstance(connection, Connection) else None
    if counter is not None:
        counter.check()
    connection.execute(_BEGIN)
    try:
        before = connection.total_changes()
        yield
        if connection.total_changes() == before:
            counter = None
        if counter is not None:
            counter.count()
        connection.execute(_COMMIT)
    except BaseException:
        if connection.in_transaction:
            connection.execute(_ROLLBACK)
        raise
    if counter is not None:
        counter.note()


@contextmanager
def reading(connection: apsw.Connection) -> Iterator[None]:
    """Let all reads in the block see the database at one instant."""
    if connection.in_transaction:
        yield
        return
    connection.execute(_BEGIN_READING)
    try:
        yield
    finally:
        connection.execute(_ROLLBACK)
