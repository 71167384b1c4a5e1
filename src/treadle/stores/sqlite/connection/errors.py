"""Translate errors of SQLite into `treadle.model.errors`, with advice."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import apsw

from treadle.kernel.store.failure import report_failure
from treadle.model.errors import (
    InvalidInput,
    InvalidStoreUrl,
    SchemaBehind,
    StoreBusy,
    StoreDamaged,
    StoreError,
    StoreFailed,
    StoreFull,
    StoreReadOnly,
    StoreUnavailable,
    TreadleError,
)

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
