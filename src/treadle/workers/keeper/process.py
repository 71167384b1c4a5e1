"""The lease keeper's process: renews the leases of a worker process whose interpreter is busy, and outlives it by seconds at most.

While the worker beats, the keeper only looks at the board. When the beats stop although the process is running, some code holds
the interpreter lock: the keeper opens the store and renews the claims on the board itself, not past their timeouts and not longer
than `keep_for`. It renews nothing for a process that was stopped (SIGSTOP): its leases expire and other workers take over. Before
that, and when the process has died, the keeper releases the claims whose handlers have not started, because they are not to blame.

This module loads nothing but the standard library; the actor, which opens the store, is loaded when there is something to do.
"""

from __future__ import annotations

import ctypes
import marshal
import mmap
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import partial
from importlib import import_module
from typing import Any, NamedTuple, Protocol, TypeVar

SESSIONS = 64
"""Lease renewers that one process can have concurrently; further ones do without a keeper."""

SLOTS = 65_536
"""Claims that one process can show its keeper; further ones are not kept."""

UNKNOWN = -1
"""The holder of the interpreter lock, if its thread is not known."""

FREE, HELD, STARTED = range(3)


def margin_of(lease: float) -> float:
    """Return the seconds before the end of a lease without renewal at which its handler stops, or does not start."""
    return min(0.5, lease / 10)


class SessionState(ctypes.Structure):
    """A lease renewer, as the keeper sees it; times are seconds of the machine's monotonic clock."""

    _fields_ = (
        ("beat_at", ctypes.c_double),
        ("lease", ctypes.c_double),  # 0: closed
        ("beat_every", ctypes.c_double),
        ("keep_for", ctypes.c_double),
        ("holder", ctypes.c_int64),  # the native id of the thread that held the interpreter lock, or `UNKNOWN`; 0: none did
        ("claiming", ctypes.c_bool),
    )


class _Slot(ctypes.Structure):
    _fields_ = (
        ("state", ctypes.c_uint8),
        ("session", ctypes.c_uint8),
        ("version", ctypes.c_int64),
        ("renewed_at", ctypes.c_double),
        ("ends_at", ctypes.c_double),
        ("kept_at", ctypes.c_double),
        ("task_id", ctypes.c_char * 36),
    )


class _Memory(ctypes.Structure):
    _fields_ = (("sessions", SessionState * SESSIONS), ("used", ctypes.c_int64), ("slots", _Slot * SLOTS))


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
    """Memory shared by a worker process and its lease keeper, with the claims that the worker holds.

    Writing a claim costs about a microsecond and no system call, and survives the death of the worker. Every write of the keeper to
    the store is fenced by claim versions, so a slot that it reads half-written does no harm; single numbers are written whole. The
    worker writes everything but `kept_at` and `holder`, which are the keeper's.
    """

    def __init__(self, file: int | None = None) -> None:
        """Map the board in `file`, or make a new one."""
        size = ctypes.sizeof(_Memory)
        if file is None:
            file = os.memfd_create("treadle-leases") if hasattr(os, "memfd_create") else _temporary()
            os.ftruncate(file, size)
        self.file = file
        self._memory = _Memory.from_buffer(mmap.mmap(file, size))
        self._sessions, self._slots = self._memory.sessions, self._memory.slots
        self._free: list[int] = []

    # the worker's side

    def open_session(self, session: int, state: SessionState) -> None:
        """Show a lease renewer."""
        shown = self._sessions[session]
        shown.beat_at, shown.beat_every, shown.keep_for = state.beat_at, state.beat_every, state.keep_for
        shown.lease = state.lease  # the lease last: with one, the session is open

    def close_session(self, session: int) -> None:
        """Remove a lease renewer."""
        shown = self._sessions[session]
        shown.lease, shown.claiming, shown.holder = 0.0, False, 0

    def beat(self, session: int, at: float) -> None:
        """Show that the lease renewer is alive."""
        self._sessions[session].beat_at = at

    def set_claiming(self, session: int, claiming: bool) -> None:
        """Show whether a claim is on its way: the store may have made it although it is not on the board."""
        self._sessions[session].claiming = claiming

    def hold(self, session: int, task_id: str, version: int, renewed_at: float, ends_at: float) -> int | None:
        """Show a claim; return its slot, or None if the board is full or the id is not one of Treadle's."""
        if len(task_id) > 36:
            return None
        try:
            number = self._free.pop()
        except IndexError:
            number = self._memory.used
            if number == SLOTS:
                return None
            self._memory.used = number + 1
        slot = self._slots[number]
        slot.session, slot.version, slot.task_id = session, version, task_id.encode()
        slot.renewed_at, slot.ends_at, slot.kept_at = renewed_at, ends_at, 0.0
        slot.state = HELD
        return number

    def start(self, slot: int) -> None:
        """Show that the claim's handler starts."""
        self._slots[slot].state = STARTED

    def renew(self, slot: int, renewed_at: float) -> None:
        """Show a renewal."""
        self._slots[slot].renewed_at = renewed_at

    def bound(self, slot: int, ends_at: float) -> None:
        """Show another end of the attempt, after which the keeper does not renew the claim."""
        self._slots[slot].ends_at = ends_at

    def drop(self, slot: int) -> None:
        """Remove a claim."""
        self._slots[slot].state = FREE
        self._free.append(slot)

    def take_holder(self, session: int) -> int:
        """Return the native id of the thread that held the interpreter lock, or `UNKNOWN`, and forget it; 0: there was none."""
        thread: int = self._sessions[session].holder
        self.blame(session, 0)
        return thread

    def kept_at(self, slot: int) -> float:
        """Return when the keeper sent its last successful renewal of the claim; 0.0: never."""
        kept_at: float = self._slots[slot].kept_at
        return kept_at

    # the keeper's side

    def session(self, session: int) -> SessionState:
        """Return a lease renewer as it is now; its `lease` is 0 if it is closed."""
        return SessionState.from_buffer_copy(self._sessions[session])

    def claims(self, session: int) -> Iterator[SlotState]:
        """Return the claims of a lease renewer."""
        for number in range(self._memory.used):
            slot = _Slot.from_buffer_copy(self._slots[number])
            if slot.state != FREE and slot.session == session:
                task_id = slot.task_id.decode("ascii", "replace")
                renewed_at = max(slot.renewed_at, slot.kept_at)
                yield SlotState(number, task_id, slot.version, slot.state == STARTED, renewed_at, slot.ends_at)

    def blame(self, session: int, thread: int) -> None:
        """Tell the worker which of its threads holds the interpreter lock."""
        self._sessions[session].holder = thread

    def keep(self, claim: SlotState, at: float) -> None:
        """Tell the worker that the keeper renewed the claim, unless the slot has another one meanwhile."""
        slot = self._slots[claim.slot]
        if slot.version == claim.version and slot.state != FREE:
            slot.kept_at = at


def _temporary() -> int:
    import tempfile  # the keeper never needs it
    from pathlib import Path

    file, path = tempfile.mkstemp(prefix="treadle-leases-")
    Path(path).unlink()
    return file


LOOK_EVERY = 1.0
_ACT_WITHIN = 10.0
"""Seconds for one act on the store."""
_LEAVE_WITHIN = 10.0
"""Seconds that the keeper lives on after its worker."""

T = TypeVar("T")

Claims = Sequence[tuple[str, int]]
"""Claims of one worker: task ids and claim versions."""


class Actor(Protocol):
    """Acts on the store for one lease renewer. Its methods block."""

    def renew(self, claims: Claims) -> set[str]:
        """Renew the leases and record a heartbeat of the server; return the ids of the renewed tasks."""

    def release(self, started: Claims, waiting: Claims | None = None) -> int:
        """Return the server's tasks that have not started to the queue, without counting a takeover; return their number.

        `waiting` limits it to these claims.
        """

    def bury(self) -> None:
        """Expire the leases of the server, which is dead, and record its end."""

    def close(self) -> None:
        """Close the store."""


class Keeper:
    """Watches the sessions of one worker process."""

    def __init__(
        self,
        board: Board,
        load: Callable[[int], Actor],
        is_running: Callable[[], bool],
        cpu_times: Callable[[], dict[int, int]],
        say: Callable[[str], None],
        limit: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        """`is_running` is false for a worker process that was stopped or is dead; `say` reports a problem to it; `limit` bounds
        the time of each act on the store."""
        self._board = board
        self._load = load
        self._is_running = is_running
        self._cpu_times = cpu_times
        self._say = say
        self._limit = limit
        self._actors: dict[int, Actor] = {}
        self._again_at: dict[int, float] = {}
        self._cpu_before: dict[int, dict[int, int]] = {}
        """CPU times of the worker's threads when a session's beats stopped."""
        self._done: set[int] = set()
        """Sessions without beats for which nothing more can be done."""

    def look(self, now: float) -> float:
        """Act where the worker cannot; return the seconds until the next look."""
        pause = LOOK_EVERY
        for number in range(SESSIONS):
            session = self._board.session(number)
            if session.lease:
                pause = min(pause, session.beat_every)
                self._look_at(number, session, now)
            else:
                self._drop_actor(number)
        return pause

    def _look_at(self, number: int, session: SessionState, now: float) -> None:
        silent_for, patience = now - session.beat_at, patience_of(session)
        if silent_for < patience / 2:
            self._done.discard(number)
            self._cpu_before.pop(number, None)
            return
        if number not in self._cpu_before:
            self._cpu_before[number] = self._cpu_times()
            if number not in self._actors and any(self._board.claims(number)):
                self._act(number, lambda _: None, now)  # loading the store takes a part of a short lease
        if silent_for < patience or now < self._again_at.get(number, 0.0):
            return
        if not self._is_running():
            waiting = [claim for claim in self._board.claims(number) if not claim.started]
            latest = max((claim.renewed_at for claim in waiting), default=float("inf"))
            if now >= latest + session.lease - margin_of(session.lease) / 2 and number not in self._done:
                self._done.add(number)
                self._act(number, lambda actor: actor.release((), _pairs(waiting)), now)  # not a claim that it has yet to receive
            return
        if silent_for > session.keep_for:
            if number not in self._done:
                self._done.add(number)
                self._say(f"gave up renewing after {session.keep_for:g} s without a sign of the worker; its leases expire")
            return
        self._blame(number)
        due = [claim for claim in self._board.claims(number) if now < claim.ends_at and now - claim.renewed_at >= session.lease / 3]
        renewed = self._act(number, lambda actor: actor.renew(_pairs(due)), now) if due else None
        for claim in due:
            if renewed and claim.task_id in renewed:
                self._board.keep(claim, now)

    def _blame(self, number: int) -> None:
        """Show the thread that used the processor since the beats stopped: only the holder of the interpreter lock can run."""
        before = self._cpu_before[number]
        spent = ((times - before[thread], thread) for thread, times in self._cpu_times().items() if thread in before)
        used, thread = max(spent, default=(0, 0))
        self._board.blame(number, thread if used > 0 else UNKNOWN)

    def leave(self) -> None:
        """Release the claims that have not started, and expire the others, because the worker process is dead."""
        for number in self._held():
            if self._has_unstarted(number):
                started = _pairs([claim for claim in self._board.claims(number) if claim.started])
                self._act(number, partial(_release, started), 0.0)
            self._act(number, lambda actor: actor.bury(), 0.0)

    def may_detach(self) -> bool:
        """Whether there is nothing to release, so that other servers, which wait for this process to end, may expire the claims."""
        return not self._actors and bool(self._held()) and not any(self._has_unstarted(number) for number in self._held())

    def _held(self) -> list[int]:
        """Sessions with claims."""
        return [number for number in range(SESSIONS) if self._board.session(number).lease and self._has_claims(number)]

    def _has_claims(self, number: int) -> bool:
        return self._board.session(number).claiming or any(True for _ in self._board.claims(number))

    def _has_unstarted(self, number: int) -> bool:
        return self._board.session(number).claiming or any(not claim.started for claim in self._board.claims(number))

    def _act(self, number: int, act: Callable[[Actor], T], now: float) -> T | None:
        """Call the actor; after an error, load a new one with the next act."""
        try:
            with self._limit():
                if number not in self._actors:
                    self._actors[number] = self._load(number)
                return act(self._actors[number])
        except Exception as error:
            self._say(f"could not act for its worker: {error}")
            self._again_at[number] = now + LOOK_EVERY
            self._drop_actor(number)
            return None

    def _drop_actor(self, number: int) -> None:
        if (actor := self._actors.pop(number, None)) is not None:
            with suppress(Exception), self._limit():
                actor.close()


def patience_of(session: SessionState) -> float:
    """Return the seconds without a beat after which the keeper acts: in time for a claim that was about to be renewed."""
    patience: float = max(2 * session.beat_every, session.lease / 6)
    return patience


def _release(started: Claims, actor: Actor) -> int:
    return actor.release(started)


def _pairs(claims: Sequence[SlotState]) -> list[tuple[str, int]]:
    return [(claim.task_id, claim.version) for claim in claims]


def is_running(pid: int) -> bool:
    """Whether the process was not stopped by a signal or a debugger. Without /proc that is not known, and it counts as running."""
    try:
        return _fields(f"/proc/{pid}/stat")[0] not in b"TtZXx"
    except FileNotFoundError:
        return not os.access("/proc/self", os.F_OK)


def cpu_times(pid: int) -> dict[int, int]:
    """Return the CPU time of each thread of the process, in clock ticks, by its native id; nothing on systems without /proc."""
    found = {}
    with suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208 - pathlib would make the process larger
            with suppress(OSError):
                fields = _fields(f"/proc/{pid}/task/{thread}/stat")
                found[int(thread)] = int(fields[11]) + int(fields[12])
    return found


def _fields(path: str) -> list[bytes]:
    """Return the fields of a `stat` file, from the state on."""
    file = os.open(path, os.O_RDONLY)
    try:
        return os.read(file, 4096).rpartition(b")")[2].split()
    finally:
        os.close(file)


@contextmanager
def _time_limit() -> Iterator[None]:
    """Raise `TimeoutError` if the store does not answer within `_ACT_WITHIN` seconds."""
    signal.setitimer(signal.ITIMER_REAL, _ACT_WITHIN)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _time_out(*_: object) -> None:
    raise TimeoutError(f"the store did not answer within {_ACT_WITHIN:g} s")


def _say(text: str) -> None:
    with suppress(OSError):  # the worker is dead
        os.write(1, text.replace("\n", " ").encode()[:4000] + b"\n")


def main(board_file: int, worker_pid: int) -> None:
    """Serve the worker until it closes its pipe (standard input) or is gone."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # a service manager sends them to all processes; the worker decides when to stop
    signal.signal(signal.SIGALRM, _time_out)
    sessions: dict[int, dict[str, Any]] = {}

    def load(number: int) -> Actor:
        told = sessions[number]
        sys.path[:] = told["path"]
        module, _, name = told["actor"].partition(":")
        actor: Actor = getattr(import_module(module), name)(**told["arguments"])
        return actor

    keeper = Keeper(Board(board_file), load, partial(is_running, worker_pid), partial(cpu_times, worker_pid), _say, _time_limit)
    poller = select.poll()
    poller.register(0, select.POLLIN | select.POLLHUP)
    heard, pause, is_alive = b"", 0.0, True
    while is_alive:
        is_alive = os.getppid() == worker_pid
        while poller.poll(pause * 1000 if is_alive else 0):  # what a worker said before it died counts
            came = os.read(0, 1 << 16)
            if not came:
                is_alive = False
                break
            heard, pause = heard + came, 0.0
            while len(heard) >= 4 and len(heard) >= 4 + (size := int.from_bytes(heard[:4], "big")):
                number, told = marshal.loads(heard[4 : 4 + size])  # noqa: S302 - made by our own parent process
                sessions[number] = told
                heard = heard[4 + size :]
        if is_alive:
            pause = keeper.look(time.monotonic())  # noqa: TID251 - the worker's clock, of the same machine
    if keeper.may_detach() and os.fork():  # the other process acts for servers that cannot see whether this one has ended
        os._exit(0)
    import threading

    limit = threading.Timer(_LEAVE_WITHIN, os._exit, (1,))
    limit.daemon = True
    limit.start()
    keeper.leave()
    os._exit(0)  # a thread of the store must not delay it
