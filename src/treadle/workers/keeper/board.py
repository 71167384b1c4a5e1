"""The board: memory shared by a worker process and its lease keeper, with the claims that the worker holds.

Writing a claim costs about a microsecond and no system call, and survives the death of the worker. Every write of the keeper to the
store is fenced by claim versions, so a slot that it reads half-written does no harm. Single numbers are written through `_floats`
and `_counts`, whole: `struct` clears a place before it writes there, and the keeper would see a beat at 0.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Iterator
from typing import NamedTuple

SESSIONS = 64
"""Lease renewers that one process can have concurrently; further ones do without a keeper."""

SLOTS = 65_536
"""Claims that one process can show its keeper; further ones are not kept."""

UNKNOWN = -1
"""The holder of the interpreter lock, if its thread is not known."""

_SESSION = struct.Struct("<dddd")  # beat_at, lease, beat_every, keep_for; a lease of 0: closed
_SLOT = struct.Struct("<BBxxxxxxqddd36s4x")  # state, session, version, renewed_at, ends_at, kept_at, task id
_WORD = 8
"""Bytes of a number, and the alignment of all of them."""
_RENEWED_AT, _ENDS_AT, _KEPT_AT = 16, 24, 32
_HOLDERS_AT = SESSIONS * _SESSION.size
_CLAIMING_AT = _HOLDERS_AT + SESSIONS * _WORD
_SLOTS_AT = _CLAIMING_AT + SESSIONS + _WORD
_USED = _SLOTS_AT // _WORD - 1
"""The number of slots in use."""
SIZE = _SLOTS_AT + SLOTS * _SLOT.size

FREE, HELD, STARTED = range(3)


def margin_of(lease: float) -> float:
    """Return the seconds before the end of a lease without renewal at which its handler stops, or does not start."""
    return min(0.5, lease / 10)


class SessionState(NamedTuple):
    """A lease renewer, as the keeper sees it; times are seconds of the machine's monotonic clock."""

    beat_at: float
    lease: float
    beat_every: float
    keep_for: float


class SlotState(NamedTuple):
    """A claim, as the keeper sees it."""

    slot: int
    task_id: str
    version: int
    started: bool
    renewed_at: float
    """When the last successful claim or renewal was sent, by the worker or by the keeper."""
    ends_at: float
    """When the attempt times out, or has made no progress for too long."""


class Board:
    """The shared memory. The worker writes everything but `kept_at`, which is the keeper's."""

    def __init__(self, file: int | None = None) -> None:
        """Map the board in `file`, or make a new one."""
        if file is None:
            file = os.memfd_create("treadle-leases") if hasattr(os, "memfd_create") else _temporary()
            os.ftruncate(file, SIZE)
        self.file = file
        self._memory = mmap.mmap(file, SIZE)
        self._floats = memoryview(self._memory).cast("d")
        self._counts = memoryview(self._memory).cast("q")
        self._free: list[int] = []
        self._used = 0

    # the worker's side

    def open_session(self, session: int, state: SessionState) -> None:
        """Show a lease renewer."""
        at = session * _SESSION.size // _WORD
        for number in (0, 2, 3, 1):  # the lease last: with one, the session is open
            self._floats[at + number] = state[number]

    def close_session(self, session: int) -> None:
        """Remove a lease renewer."""
        self._floats[session * _SESSION.size // _WORD + 1] = 0.0
        self.set_claiming(session, False)
        self.blame(session, 0)

    def beat(self, session: int, at: float) -> None:
        """Show that the lease renewer is alive."""
        self._floats[session * _SESSION.size // _WORD] = at

    def set_claiming(self, session: int, claiming: bool) -> None:
        """Show whether a claim is on its way: the store may have made it although it is not on the board."""
        self._memory[_CLAIMING_AT + session] = claiming

    def hold(self, session: int, task_id: str, version: int, renewed_at: float, ends_at: float) -> int | None:
        """Show a claim; return its slot, or None if the board is full."""
        try:
            slot = self._free.pop()
        except IndexError:
            if self._used == SLOTS or len(task_id) > 36:
                return None
            slot, self._used = self._used, self._used + 1
            self._counts[_USED] = self._used
        at = _SLOTS_AT + slot * _SLOT.size
        _SLOT.pack_into(self._memory, at, FREE, session, version, renewed_at, ends_at, 0.0, task_id.encode())
        self._memory[at] = HELD
        return slot

    def start(self, slot: int) -> None:
        """Show that the claim's handler starts."""
        self._memory[_SLOTS_AT + slot * _SLOT.size] = STARTED

    def renew(self, slot: int, renewed_at: float) -> None:
        """Show a renewal."""
        self._floats[(_SLOTS_AT + slot * _SLOT.size + _RENEWED_AT) // _WORD] = renewed_at

    def bound(self, slot: int, ends_at: float) -> None:
        """Show another end of the attempt, after which the keeper does not renew the claim."""
        self._floats[(_SLOTS_AT + slot * _SLOT.size + _ENDS_AT) // _WORD] = ends_at

    def drop(self, slot: int) -> None:
        """Remove a claim."""
        self._memory[_SLOTS_AT + slot * _SLOT.size] = FREE
        self._free.append(slot)

    def take_holder(self, session: int) -> int:
        """Return the native id of the thread that held the interpreter lock, or `UNKNOWN`, and forget it; 0: there was none."""
        thread = self._counts[_HOLDERS_AT // _WORD + session]
        self.blame(session, 0)
        return thread

    def kept_at(self, slot: int) -> float:
        """Return when the keeper sent its last successful renewal of the claim; 0.0: never."""
        return self._floats[(_SLOTS_AT + slot * _SLOT.size + _KEPT_AT) // _WORD]

    # the keeper's side

    def session(self, session: int) -> SessionState:
        """Return a lease renewer; its `lease` is 0 if it is closed."""
        return SessionState(*_SESSION.unpack_from(self._memory, session * _SESSION.size))

    def is_claiming(self, session: int) -> bool:
        """Whether a claim is on its way."""
        return bool(self._memory[_CLAIMING_AT + session])

    def claims(self, session: int) -> Iterator[SlotState]:
        """Return the claims of a lease renewer."""
        for slot in range(self._counts[_USED]):
            at = _SLOTS_AT + slot * _SLOT.size
            if self._memory[at] != FREE:
                state, of, version, renewed_at, ends_at, kept_at, task_id = _SLOT.unpack_from(self._memory, at)
                if of == session and state != FREE:
                    text = task_id.rstrip(b"\0").decode("ascii", "replace")
                    yield SlotState(slot, text, version, state == STARTED, max(renewed_at, kept_at), ends_at)

    def blame(self, session: int, thread: int) -> None:
        """Tell the worker which of its threads holds the interpreter lock."""
        self._counts[_HOLDERS_AT // _WORD + session] = thread

    def keep(self, claim: SlotState, at: float) -> None:
        """Tell the worker that the keeper renewed the claim, unless the slot has another one meanwhile."""
        start = _SLOTS_AT + claim.slot * _SLOT.size
        if _SLOT.unpack_from(self._memory, start)[2] == claim.version and self._memory[start] != FREE:
            self._floats[(start + _KEPT_AT) // _WORD] = at


def _temporary() -> int:
    import tempfile  # the keeper never needs it
    from pathlib import Path

    file, path = tempfile.mkstemp(prefix="treadle-leases-")
    Path(path).unlink()
    return file
