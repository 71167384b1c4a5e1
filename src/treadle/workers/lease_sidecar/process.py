"""The lease sidecar's process: renews the leases of a worker process whose interpreter is busy, and outlives it by seconds at most.

While the worker beats, the sidecar only looks at the table. When the beats stop although the process is running, some code holds
the interpreter lock: the sidecar opens the store and renews the claims on the table itself, not past their timeouts and not
longer than `keep_for`. It renews nothing for a process that was stopped (SIGSTOP): its leases expire and other workers take over.
Before that, and when the process has died, the sidecar releases the claims whose handlers have not started, because they are not to
blame.

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
from typing import NamedTuple, Protocol, TypeVar

SLOTS = 65_536
"""Claims that one process can show its sidecar; further ones are not kept."""

UNKNOWN = -1
"""The holder of the interpreter lock, if its thread is not known."""

FREE, HELD, STARTED = range(3)


def margin_of(lease: float) -> float:
    """Return the seconds before the end of a lease without renewal at which its handler stops, or does not start."""
    return min(0.5, lease / 10)


class Slot(ctypes.Structure):
    """An entry of the lease table. The worker writes everything but `extended_at`; times are those of the machine's
    monotonic clock."""

    _fields_ = (
        ("state", ctypes.c_uint8),
        ("version", ctypes.c_int64),
        ("renewed_at", ctypes.c_double),  # when the last successful claim or renewal was sent
        ("ends_at", ctypes.c_double),  # when the attempt times out, or has made no progress for too long
        ("extended_at", ctypes.c_double),  # when the sidecar sent its last successful renewal; 0.0: never
        ("task_id", ctypes.c_char * 36),
    )


class State(ctypes.Structure):
    """A lease renewer and its claims. The worker writes everything but `holder`."""

    _fields_ = (
        ("beat_at", ctypes.c_double),
        ("lease", ctypes.c_double),  # seconds; 0: closed
        ("beat_every", ctypes.c_double),
        ("keep_for", ctypes.c_double),
        ("holder", ctypes.c_int64),  # the native id of the thread that held the interpreter lock, or `UNKNOWN`; 0: none did
        ("claiming", ctypes.c_bool),  # whether a claim is on its way: the store may have made it although it is not here
        ("used", ctypes.c_int64),
        ("slots", Slot * SLOTS),
    )


class HeldClaim(NamedTuple):
    """A claim, as the sidecar sees it."""

    slot: int
    task_id: str
    version: int
    started: bool
    renewed_at: float
    """When the last successful claim or renewal was sent, by the worker or by the sidecar."""
    ends_at: float
    """When the attempt times out, or has made no progress for too long."""


class LeaseTable:
    """Memory shared by a worker process and its lease sidecar, with the claims that the worker holds.

    Writing a claim costs about a microsecond and no system call, and survives the death of the worker. Every write of the sidecar
    to the store is fenced by claim versions, so a slot that it reads half-written does no harm; single numbers are written whole.
    """

    def __init__(self, file: int | None = None) -> None:
        """Map the lease table in `file`, or make a new one."""
        size = ctypes.sizeof(State)
        if file is None:
            file = os.memfd_create("treadle-leases") if hasattr(os, "memfd_create") else _temporary()
            os.ftruncate(file, size)
        self.file = file
        self.state = State.from_buffer(mmap.mmap(file, size))
        self._slots = self.state.slots
        self._free: list[Slot] = []

    # the worker's side

    def open(self, now: float, lease: float, beat_every: float, keep_for: float) -> None:
        """Show the lease renewer."""
        state = self.state
        state.beat_at, state.beat_every, state.keep_for = now, beat_every, keep_for
        state.lease = lease  # the lease last: with one, the table is open

    def close(self) -> None:
        """Let the sidecar see no claim any more."""
        self.state.lease = 0.0
        os.close(self.file)

    def hold(self, task_id: str, version: int, renewed_at: float, ends_at: float) -> Slot | None:
        """Show a claim; return its slot, or None if the table is full or the id is not one of Treadle's."""
        if len(task_id) > 36:
            return None
        slot: Slot
        if self._free:
            slot = self._free.pop()
        elif self.state.used < SLOTS:
            slot = self._slots[self.state.used]
            self.state.used += 1
        else:
            return None
        slot.version, slot.task_id = version, task_id.encode()
        slot.renewed_at, slot.ends_at, slot.extended_at = renewed_at, ends_at, 0.0
        slot.state = HELD
        return slot

    def drop(self, slot: Slot) -> None:
        """Remove a claim."""
        slot.state = FREE
        self._free.append(slot)

    def take_holder(self) -> int:
        """Return the native id of the thread that held the interpreter lock, or `UNKNOWN`, and forget it; 0: there was none."""
        thread: int = self.state.holder
        self.state.holder = 0
        return thread

    # the sidecar's side

    def claims(self) -> Iterator[HeldClaim]:
        """Return the claims."""
        for number in range(self.state.used):
            slot = Slot.from_buffer_copy(self._slots[number])
            if slot.state != FREE:
                task_id = slot.task_id.decode("ascii", "replace")
                renewed_at = max(slot.renewed_at, slot.extended_at)
                yield HeldClaim(number, task_id, slot.version, slot.state == STARTED, renewed_at, slot.ends_at)

    def keep(self, claim: HeldClaim, at: float) -> None:
        """Tell the worker that the sidecar renewed the claim, unless the slot has another one meanwhile."""
        slot = self._slots[claim.slot]
        if slot.version == claim.version and slot.state != FREE:
            slot.extended_at = at


def _temporary() -> int:
    import tempfile  # the sidecar never needs it
    from pathlib import Path

    file, path = tempfile.mkstemp(prefix="treadle-leases-")
    Path(path).unlink()
    return file


LOOK_EVERY = 1.0
_ACT_WITHIN = 10.0
"""Seconds for one act on the store."""
_LEAVE_WITHIN = 10.0
"""Seconds that the sidecar lives on after its worker."""

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

    def declare_dead(self) -> None:
        """Expire the leases of the server, which is dead, and record its end."""

    def close(self) -> None:
        """Close the store."""


class Sidecar:
    """Watches one lease renewer of a worker process."""

    def __init__(
        self,
        table: LeaseTable,
        load: Callable[[], Actor],
        is_running: Callable[[], bool],
        cpu_times: Callable[[], dict[int, int]],
        say: Callable[[str], None],
        limit: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        """`is_running` is false for a worker process that was stopped or is dead; `say` reports a problem to it; `limit` bounds
        the time of each act on the store."""
        self._table = table
        self._load = load
        self._is_running = is_running
        self._cpu_times = cpu_times
        self._log = say
        self._limit = limit
        self._actor: Actor | None = None
        self._again_at = 0.0
        self._cpu_before: dict[int, int] | None = None
        """CPU times of the worker's threads when the beats stopped."""
        self._done = False
        """Whether nothing more can be done until the next beat."""

    def look(self, now: float) -> float:
        """Act where the worker cannot; return the seconds until the next look."""
        if self._table.state.lease:
            self._act_if_silent(now)
        pause: float = min(LOOK_EVERY, self._table.state.beat_every)
        return pause

    def _act_if_silent(self, now: float) -> None:
        state, lease = self._table.state, self._table.state.lease
        silent_for, limit = now - state.beat_at, silence_limit(lease, state.beat_every)
        if silent_for < limit / 2:
            self._done, self._cpu_before = False, None
            return
        if self._cpu_before is None:
            self._cpu_before = self._cpu_times()
            if self._actor is None and any(self._table.claims()):
                self._act(lambda _: None, now)  # loading the store takes a part of a short lease
        if silent_for < limit or now < self._again_at:
            return
        if not self._is_running():
            waiting = [claim for claim in self._table.claims() if not claim.started]
            latest = max((claim.renewed_at for claim in waiting), default=float("inf"))
            if now >= latest + lease - margin_of(lease) / 2 and not self._done:
                self._done = True
                self._act(lambda actor: actor.release((), _pairs(waiting)), now)  # not a claim that it has yet to receive
            return
        if silent_for > state.keep_for:
            if not self._done:
                self._done = True
                self._log(f"gave up renewing after {state.keep_for:g} s without a sign of the worker; its leases expire")
            return
        self._blame(self._cpu_before)
        due = [claim for claim in self._table.claims() if now < claim.ends_at and now - claim.renewed_at >= lease / 3]
        renewed = self._act(lambda actor: actor.renew(_pairs(due)), now) if due else None
        for claim in due:
            if renewed and claim.task_id in renewed:
                self._table.keep(claim, now)

    def _blame(self, before: dict[int, int]) -> None:
        """Show the thread that used the processor since the beats stopped: only the holder of the interpreter lock can run."""
        spent = ((times - before[thread], thread) for thread, times in self._cpu_times().items() if thread in before)
        used, thread = max(spent, default=(0, 0))
        self._table.state.holder = thread if used > 0 else UNKNOWN

    def leave(self) -> None:
        """Release the claims that have not started, and expire the others, because the worker process is dead."""
        if not self._has_claims():
            return
        if self._has_unstarted():
            started = _pairs([claim for claim in self._table.claims() if claim.started])
            self._act(lambda actor: actor.release(started), 0.0)
        self._act(lambda actor: actor.declare_dead(), 0.0)

    def may_detach(self) -> bool:
        """Whether there is nothing to release, so that other servers, which wait for this process to end, may expire the claims."""
        return self._actor is None and self._has_claims() and not self._has_unstarted()

    def _has_claims(self) -> bool:
        state = self._table.state
        return bool(state.lease) and (state.claiming or any(True for _ in self._table.claims()))

    def _has_unstarted(self) -> bool:
        return self._table.state.claiming or any(not claim.started for claim in self._table.claims())

    def _act(self, act: Callable[[Actor], T], now: float) -> T | None:
        """Call the actor; after an error, load a new one with the next act."""
        try:
            with self._limit():
                self._actor = self._actor or self._load()
                return act(self._actor)
        except Exception as error:
            self._log(f"could not act for its worker: {error}")
            self._again_at = now + LOOK_EVERY
            actor, self._actor = self._actor, None
            if actor is not None:
                with suppress(Exception), self._limit():
                    actor.close()
            return None


def silence_limit(lease: float, beat_every: float) -> float:
    """Return the seconds without a beat after which the sidecar acts: in time for a claim that was about to be renewed."""
    return max(2 * beat_every, lease / 6)


def _pairs(claims: Sequence[HeldClaim]) -> list[tuple[str, int]]:
    return [(claim.task_id, claim.version) for claim in claims]


def is_running(pid: int) -> bool:
    """Whether the process was not stopped by a signal or a debugger. Without /proc that is not known, and it counts as running."""
    try:
        return _fields(f"/proc/{pid}/stat")[0] not in b"TtZXx"
    except FileNotFoundError:
        return not os.access("/proc/self", os.F_OK)


def cpu_times(pid: int) -> dict[int, int]:
    """Return the CPU time of each thread of the process, in clock ticks, by its native id; nothing on systems without /proc."""
    times = {}
    with suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208 - pathlib would make the process larger
            with suppress(OSError):
                fields = _fields(f"/proc/{pid}/task/{thread}/stat")
                times[int(thread)] = int(fields[11]) + int(fields[12])
    return times


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


def _log(text: str) -> None:
    with suppress(OSError):  # the worker is dead
        os.write(1, text.replace("\n", " ").encode()[:4000] + b"\n")


def main(table_file: int, worker_pid: int) -> None:
    """Serve the worker until it closes its pipe (standard input) or is gone."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # a service manager sends them to all processes; the worker decides when to stop
    signal.signal(signal.SIGALRM, _time_out)
    with open(0, "rb", closefd=False) as pipe:
        try:
            order = marshal.load(pipe)  # noqa: S302 - written by our own parent process
        except EOFError:  # it died before it had claimed anything
            os._exit(0)

    def load() -> Actor:
        sys.path[:] = order["path"]
        module, _, name = order["actor"].partition(":")
        actor: Actor = getattr(import_module(module), name)(**order["arguments"])
        return actor

    sidecar = Sidecar(
        LeaseTable(table_file), load, partial(is_running, worker_pid), partial(cpu_times, worker_pid), _log, _time_limit
    )
    poller = select.poll()
    poller.register(0, select.POLLIN | select.POLLHUP)
    pause = 0.0
    while os.getppid() == worker_pid and not poller.poll(pause * 1000):
        pause = sidecar.look(time.monotonic())  # noqa: TID251 - the worker's clock, of the same machine
    if sidecar.may_detach() and os.fork():  # the other process acts for servers that cannot see whether this one has ended
        os._exit(0)
    import threading

    limit = threading.Timer(_LEAVE_WITHIN, os._exit, (1,))
    limit.daemon = True
    limit.start()
    sidecar.leave()
    os._exit(0)  # a thread of the store must not delay it
