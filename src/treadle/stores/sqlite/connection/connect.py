"""Connections: open and configure them, run transactions, tidy the log, and translate errors of SQLite."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import cache
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import unquote, urlsplit

import apsw
import msgspec

from treadle.kernel.store.process import report_failure
from treadle.model.errors import (
    InvalidInput,
    InvalidStoreUrl,
    SchemaBehind,
    StoreBusy,
    StoreDamaged,
    StoreError,
    StoreFailed,
    StoreFileInUse,
    StoreFull,
    StoreReadOnly,
    StoreUnavailable,
    StoreUnsafe,
    TreadleError,
)
from treadle.stores.statements import load_statements

if TYPE_CHECKING:
    from treadle.stores.sqlite.connection.commits import CommitCounter

_FAILED_SYNC = (apsw.SQLITE_IOERR_FSYNC, apsw.SQLITE_IOERR_DIR_FSYNC)


@contextmanager
def translated(shown: str) -> Iterator[None]:
    """Translate SQLite errors raised in the block; `shown` is the path of the file."""
    try:
        yield
    except apsw.Error as error:
        meant = _meaning(error, shown)
        if meant is None:
            raise
        raise meant from error


class Fuse:
    """Translates errors like `translated`; after a failed sync, or `refuse`, it refuses everything.

    The system may report a failure once and the next sync as done, although data was dropped.
    """

    def __init__(self, shown: str) -> None:
        self._shown = shown
        self._failed = False
        self._refusal: StoreError | None = None

    def refuse(self, error: StoreError) -> None:
        """Raise the error from now on."""
        self._refusal = error

    @contextmanager
    def guard(self) -> Iterator[None]:
        """Guard the use of a connection in the block."""
        if self._refusal is not None:
            raise type(self._refusal)(str(self._refusal))  # the same object would collect tracebacks
        if self._failed:
            raise StoreFailed(f"A sync of {self._shown} has failed in this process. Nothing was written; start the process again.")
        try:
            yield
        except apsw.Error as error:
            meant = _meaning(error, self._shown)
            if meant is None:
                raise
            if isinstance(meant, StoreFailed):
                self._failed = True
                report_failure(meant)
            raise meant from error


def is_failed_sync(error: BaseException) -> bool:
    """Return whether the disk could not sync: the outcome of the commit is unknown."""
    return isinstance(error, apsw.IOError) and getattr(error, "extendedresult", 0) in _FAILED_SYNC


def _meaning(error: apsw.Error, shown: str) -> TreadleError | None:
    """Return the translated error, or None for one that only a bug in this code can cause."""
    match error:
        case apsw.BusyError() | apsw.LockedError() | apsw.ProtocolError():
            return StoreBusy(
                f"Another process has kept {shown} locked for seconds. Nothing was written; try again. If it stays so, look for a "
                "program that holds a transaction open (a database browser, a backup): `fuser` names the processes."
            )
        case apsw.FullError():
            return StoreFull(f"The disk of {shown} is full. Nothing was written; free some space and try again.")
        case apsw.ReadOnlyError() if getattr(error, "extendedresult", 0) == apsw.SQLITE_READONLY_DBMOVED:
            return StoreUnavailable(f"{shown} was moved or deleted while it was in use. Put it back, or restart.")
        case apsw.ReadOnlyError() | apsw.PermissionsError():
            return StoreReadOnly(f"{shown} cannot be written. Give this user write access to the file and to its directory.")
        case apsw.CantOpenError():
            return StoreUnavailable(
                f"{shown} cannot be opened ({error}). Check that it is there, and that this user may read and write it and its "
                "directory."
            )
        case apsw.NotADBError():
            return InvalidStoreUrl(
                f"{shown} is not an SQLite database (or is encrypted). Choose another path; it was left as it is."
            )
        case apsw.CorruptError():
            return StoreDamaged(
                f"{shown} is damaged ({error}). Stop all processes that use it, keep a copy of it, then restore a backup or rescue "
                "what can be read with `sqlite3 FILE .recover`."
            )
        case apsw.IOError() if is_failed_sync(error):
            return StoreFailed(
                f"The disk could not make {shown} durable ({error}). It is unknown whether the last commit survives; "
                "this process writes nothing more. Look at the disk and the system's log, then start it again."
            )
        case apsw.IOError():
            return StoreUnavailable(f"Reading or writing {shown} failed ({error}). Look at the disk and the system's log.")
        case apsw.ConnectionClosedError():
            return StoreUnavailable(f"The store {shown} is closed.")
        case apsw.ConstraintError() | apsw.MismatchError():
            return InvalidInput(f"The database refuses these rows, and nothing was written: {error}.")
        case apsw.TooBigError():
            return InvalidInput(f"This is more than SQLite takes at once, and nothing was written: {error}. Send less in one call.")
        case apsw.SQLError() if "no such" in str(error):
            return SchemaBehind(f"{shown} lacks what this version of Treadle needs ({error}). Run `treadle store migrate`.")
        case _:
            return None


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


class SqliteConnection(apsw.Connection):
    """A connection; the one that writes to a file counts its commits."""

    counter: CommitCounter | None = None
    path = ""
    """Of its file; `filename` cannot be read while another thread uses the connection."""


def connect(path: str | None, *, create: bool = True) -> SqliteConnection:
    """Open a connection without changing the database; None opens a new database in memory.

    A new file is readable and writable by its owner only.
    """
    if path is not None:
        guard_sqlite3()
    if path is not None and create:
        # SQLite reports why the file cannot be created; its -wal and -shm files get the same mode. An existing file must not be
        # opened here: closing it would drop the locks of this process, and another process could then delete a log in use.
        with suppress(OSError):
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600))
    flags = apsw.SQLITE_OPEN_READWRITE | (apsw.SQLITE_OPEN_CREATE if create else 0)
    connection = SqliteConnection(path or ":memory:", flags=flags, statementcachesize=200)
    connection.path = "" if path is None else str(Path(path).absolute())
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
    connection = SqliteConnection(os.fspath(path), flags=apsw.SQLITE_OPEN_READONLY)
    connection.path = str(Path(path).absolute())
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
    flags: list[str] = []
    records = []
    for row in cursor:
        if not names:  # the cursor has them only while there are rows
            names = [column[0] for column in cursor.description]
            flags = [name for name in names if name in _flags(kind)]  # type: ignore[arg-type]
        fields = dict(zip(names, row, strict=True))
        for name in flags:
            fields[name] = bool(fields[name])
        records.append(kind(**fields))
    return records


@cache
def _flags(kind: type[Any]) -> frozenset[str]:
    """Return the fields that are truth values, for which SQLite has only numbers."""
    if not issubclass(kind, msgspec.Struct):
        return frozenset()
    return frozenset(field.name for field in msgspec.structs.fields(kind) if field.type is bool)


def writing(connection: apsw.Connection) -> AbstractContextManager[object]:
    """Run the block as one durable transaction, or as a savepoint of a held transaction; roll it back if it raises."""
    return connection if connection.in_transaction else _transaction(connection)


@contextmanager
def _transaction(connection: apsw.Connection) -> Iterator[None]:
    """Begin and commit; count the commit if it changed something."""
    counter = connection.counter if isinstance(connection, SqliteConnection) else None
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


@cache
def guard_sqlite3() -> None:
    """Check every `sqlite3.connect` of this process from now on; Python offers no way to remove such a hook."""
    sys.addaudithook(_check)


def _check(event: str, arguments: tuple[object, ...]) -> None:
    if event != "sqlite3.connect":
        return
    wanted = _identity(_path_of(arguments[0]))
    if wanted is None:
        return
    for path in {connection.path for connection in apsw.connections() if isinstance(connection, SqliteConnection)}:
        if wanted == _identity(path):
            raise StoreFileInUse(
                f"This process has the store {path} open: a connection of Python's sqlite3 to the same file could "
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
        status = Path(path).stat() if path and path != ":memory:" else None
    except (OSError, ValueError):
        return None
    return None if status is None else (status.st_dev, status.st_ino)


NETWORK_FILE_SYSTEMS = frozenset(
    {"9p", "afs", "afpfs", "beegfs", "ceph", "cifs", "coda", "davfs", "fuse.sshfs", "gfs2", "glusterfs", "lustre", "ncpfs", "nfs"}
    | {"nfs4", "ocfs2", "smb", "smb2", "smb3", "smbfs", "vboxsf", "virtiofs"}
    | {"fuse.ceph", "fuse.glusterfs", "fuse.rclone", "fuse.s3fs", "fuse.davfs"}
)
"""File systems on which processes do not share memory, or locks are unreliable."""

_MOUNTS = Path("/proc/self/mounts")


def check_place(path: Path, *, create: bool = True, mounts: Path = _MOUNTS) -> None:
    """Raise an error if the path is unusable; writes nothing."""
    if path.is_dir():
        raise InvalidStoreUrl(f"{path} is a directory. Name a file in it, e.g. {path / 'treadle.db'}.")
    directory = path.absolute().parent
    if not directory.is_dir():
        raise InvalidStoreUrl(f"There is no directory {directory}. Create it (mkdir -p {directory}), or choose another path.")
    kind = file_system(directory, mounts)
    if kind in NETWORK_FILE_SYSTEMS:
        raise StoreUnsafe(
            f"{path} is on a network file system ({kind}). SQLite's write-ahead log needs memory that all processes share and "
            "locks that work, which such a file system does not give: the database would be damaged sooner or later. Put the "
            "file on a local disk, or use PostgreSQL."
        )
    if not create and not path.exists():
        raise SchemaBehind(f"There is no database at {path} yet. `treadle dev`, a worker or `treadle store migrate` makes it.")
    if path.exists() and not os.access(path, os.W_OK):
        raise StoreReadOnly(f"{path} cannot be written by this user. Give it write access (chmod u+w), or choose another path.")
    if not os.access(directory, os.W_OK) or os.statvfs(directory).f_flag & os.ST_RDONLY:
        raise StoreReadOnly(
            f"The directory {directory} cannot be written by this user, and SQLite keeps its write-ahead log beside the database. "
            "Give it write access, or choose another path."
        )


def file_system(directory: Path, mounts: Path = _MOUNTS) -> str | None:
    """Return the type of the file system that holds the directory, or None if the system does not report it."""
    try:
        lines = mounts.read_text("utf-8", "replace").splitlines()
    except OSError:
        return None
    place = directory.resolve()
    best, kind = -1, None
    for line in lines:
        _, point, file_type, *_ = line.split(" ")
        mounted = Path(point.encode().decode("unicode_escape"))
        if place.is_relative_to(mounted) and len(mounted.parts) >= best:
            best, kind = len(mounted.parts), file_type
    return kind


CHECKPOINT_PAGES = 4_000
"""Pages of log (16 MiB) after which a checkpoint runs: rarely enough to cost little, often enough to keep reads fast."""

PAGE_BYTES = 4_096

SCARCE = 4
"""A checkpoint runs earlier if less than this many times the log's size is free: it needs space in the file to empty the log."""

LOOK_EVERY = 250
"""Pages of log between two looks at the free space."""

TRUNCATE_PAGES = 8 * CHECKPOINT_PAGES
"""Pages after which a checkpoint also truncates the log's file; otherwise SQLite reuses its space, which is cheaper."""


class Checkpointer:
    """Watches the log of the writing connection.

    A reader of another process that holds an old snapshot makes a checkpoint incomplete; it runs again a little later.
    """

    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection
        self._pages = 0
        self._patient_until = 0
        self._look_at = 0
        connection.set_wal_hook(self._note)

    def _note(self, connection: apsw.Connection, name: str, pages: int) -> int:
        self._pages = pages
        return apsw.SQLITE_OK

    def tidy(self) -> None:
        """Run a checkpoint if the log has grown enough, or while there is still space for one; free otherwise."""
        if self._pages >= self._patient_until and (self._pages >= CHECKPOINT_PAGES or self._is_scarce()):
            done = self._checkpoint()
            self._patient_until = 0 if done else self._pages + CHECKPOINT_PAGES // 4
            self._pages, self._look_at = 0, LOOK_EVERY

    def _is_scarce(self) -> bool:
        if self._pages < self._look_at:
            return False
        self._look_at = self._pages + LOOK_EVERY
        try:
            disk = os.statvfs(self._connection.filename)
        except OSError:
            return False
        return disk.f_bavail * disk.f_frsize < SCARCE * self._pages * PAGE_BYTES

    def _checkpoint(self) -> bool:
        mode = apsw.SQLITE_CHECKPOINT_TRUNCATE if self._pages >= TRUNCATE_PAGES else apsw.SQLITE_CHECKPOINT_FULL
        self._connection.set_busy_handler(None)
        try:
            pages, written = self._connection.wal_checkpoint("main", mode)
            return pages == written
        except apsw.Error as error:
            if is_failed_sync(error):
                raise
            return False  # even if the disk is full, committed work is safe in the log
        finally:
            self._connection.set_busy_handler(wait_for_lock)
