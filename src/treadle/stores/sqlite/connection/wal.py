"""Write the write-ahead log back into the file when it has grown, between transactions and without long waits."""

from __future__ import annotations

import os

import apsw

from treadle.stores.sqlite.connection.connect import wait_for_lock
from treadle.stores.sqlite.connection.errors import is_failed_sync

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
