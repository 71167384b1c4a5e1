"""Count commits in the database, and note the count in a file beside it, to find a database that has lost its last commits.

A write-ahead log that was deleted or cut leaves a consistent, older database. Its count is then behind the note. A commit is
noted after it is durable and without a sync: notes survive killed processes, and a power cut leaves them behind, never ahead.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

import apsw

from treadle.model.clock import Clock, as_text
from treadle.model.errors import StoreDamaged, StoreReadOnly
from treadle.stores.statements import load_statements

SUFFIX = "-commits"

_SQL = load_statements(__package__, "commits.sql")
_COUNT = _SQL["count_commit"]
_COUNT_BITS = 40
"""Bits of the stored number that count; those above are the database's own, so that another one is not mistaken for it."""

_SLOTS, _SLOT = 64, 64
"""Notes in the file, and bytes of each. Commit n has slot n % 64: processes that commit concurrently do not undo each other."""


class Note(NamedTuple):
    """A commit: the database's own bits, the number of its commits until then, and the instant."""

    line: int
    number: int
    at: int


class CommitCounter:
    """The count of the connection that writes to a file."""

    def __init__(self, connection: apsw.Connection, path: str, clock: Clock) -> None:
        self.missing = find_missing(connection, path)
        """The reason why nothing may be written: commits are missing."""
        self._connection = connection
        self._clock = clock
        self._path = os.path.realpath(path)  # the process may change its directory
        self._note: Note | None = None
        self._file: int | None = None

    def check(self) -> None:
        """Raise `StoreDamaged` if commits are missing."""
        if self.missing is not None:
            raise StoreDamaged(self.missing)

    def count(self) -> None:
        """Count the transaction that is about to commit."""
        self._note = _run(self._connection, _COUNT, {"now": self._clock.now()})

    def note(self) -> None:
        """Note the transaction that has committed; a full disk does not matter, since a note may be behind."""
        with suppress(OSError):
            if self._file is None:
                self._file = _open(self._path)
            if self._note is None:
                os.ftruncate(self._file, 0)
            else:
                os.pwrite(self._file, _encode(self._note), self._note.number % _SLOTS * _SLOT)

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


def check_gone(path: str) -> None:
    """Raise `StoreDamaged` if there is no database, but notes of its commits."""
    if not Path(path).exists() and (note := _read_note(path)) is not None:
        raise StoreDamaged(
            f"There is no database at {path}, but there was one: {path}{SUFFIX} has {note.number} commits, the last of "
            f"{as_text(note.at)}. Put the database back or restore a backup. To begin with an empty one, run `treadle store accept "
            "--yes`."
        )


def check_header(path: str) -> None:
    """Raise `StoreDamaged` if a file that is not a database was one."""
    if (note := _read_note(path)) is not None:
        raise StoreDamaged(
            f"{path} is damaged: it was a database with {note.number} commits, the last of {as_text(note.at)}, and its first page "
            "is not that of one. Stop all processes that use it, keep a copy of its files, and restore a backup."
        )


def forget(path: str) -> str | None:
    """Remove the notes: the database is right as it is. Return the last note as text, if there was one."""
    note = _read_note(path)
    if note is None:
        return None
    os.truncate(_place(path), 0)  # not unlink: running processes go on with the same file
    return f"{note.number} commits, the last of {as_text(note.at)}"


def find_missing(connection: apsw.Connection, path: str) -> str | None:
    """Return a message if the database lacks commits that were acknowledged."""
    note = _read_note(path)  # first: the database may get more commits meanwhile, and the note follows them
    if note is None:
        return None
    last = _run(connection, _SQL["read_count"])
    if last is not None and last.line != note.line:
        what = f"is another database than the one whose commits are in {path}{SUFFIX}, the last of {as_text(note.at)}"
    elif last is None or last.number < note.number:
        lost = note.number - (0 if last is None else last.number)
        end = "is empty" if last is None else f"ends with the commit of {as_text(last.at)}"
        what = (
            f"lacks its last {lost} commit{'s' * (lost != 1)}: it {end}, but commits until {as_text(note.at)} were acknowledged. "
            "Its -wal file was deleted or damaged, or an older copy is in its place"
        )
    else:
        return None
    return (
        f"{path} {what}. Stop all processes that use it, keep a copy of its files, and put the missing file back or restore a "
        "backup. To continue with the database as it is, run `treadle store accept --yes`; until then, nothing is written."
    )


def _run(connection: apsw.Connection, statement: str, values: dict[str, int] | None = None) -> Note | None:
    """Return the commit that the statement counts or reads; None without tables, or before the first."""
    try:
        rows: Any = connection.execute(statement, values).fetchall()
    except apsw.SQLError:
        return None
    counts = dict(rows)
    return Note(counts["commit"] >> _COUNT_BITS, counts["commit"] & (1 << _COUNT_BITS) - 1, counts["commit_at"]) if counts else None


def _place(path: str) -> str:
    """Return the path of the notes, the same for all names of the database."""
    return os.path.realpath(path) + SUFFIX


def _open(path: str) -> int:
    """Open the notes; a new file gets the mode of the database, and its owner if root creates it, like SQLite's own files."""
    try:
        return os.open(_place(path), os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        file = os.open(_place(path), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        database = Path(path).stat()
        os.fchmod(file, database.st_mode & 0o666)
        if os.geteuid() == 0:
            os.fchown(file, database.st_uid, database.st_gid)
        return file


def _read_note(path: str) -> Note | None:
    """Return the highest note; None without one."""
    try:
        content = Path(_place(path)).read_bytes()
    except FileNotFoundError:
        return None
    except PermissionError:
        raise StoreReadOnly(f"{path}{SUFFIX} cannot be read by this user. Give it the same access as to {path}.") from None
    slots = [content[at : at + _SLOT] for at in range(0, len(content), _SLOT)]
    return max((note for note in map(_decode, slots) if note is not None), default=None)


def _encode(note: Note) -> bytes:
    text = b"%07x %012d %015d" % note
    return (b"%s %08x" % (text, crc32(text))).ljust(_SLOT - 1) + b"\n"


def _decode(slot: bytes) -> Note | None:
    """Return the note, unless the slot is empty or half-written."""
    text, _, checksum = slot.rstrip().rpartition(b" ")
    if not text or checksum != b"%08x" % crc32(text):
        return None
    line, number, at = text.split()
    return Note(int(line, 16), int(number), int(at))
