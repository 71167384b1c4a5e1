"""The worker's side of the lease keeper: starts the process, shows it the claims, and replaces it when it dies.

A process has one keeper for all its lease renewers. It starts with the first of them, before anything is claimed, because a
handler that holds the interpreter lock would not let it start later; it ends with the process.
"""

from __future__ import annotations

import atexit
import marshal
import os
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from treadle.kernel.telemetry.events import Emit, LoopError
from treadle.model.clock import Clock
from treadle.model.retry import Backoff
from treadle.workers.keeper.process import SESSIONS, Board, SessionState

_ROOT = Path(__file__).parents[3]
_CODE = (
    "import sys; sys.path.insert(0, sys.argv[1]); from treadle.workers.keeper.process import main; "
    "main(int(sys.argv[2]), int(sys.argv[3]))"
)
_RESTARTS = Backoff(1.0, 60.0)
"""Seconds until a dead keeper is replaced."""

_END_WITHIN = 2.0


class KeptBy(msgspec.Struct, frozen=True):
    """How the keeper acts on the store."""

    actor: str
    """`MODULE:NAME` of an `Actor`."""
    arguments: dict[str, Any]
    """Its arguments: numbers and texts. They may contain credentials, so they are sent through a pipe."""
    keep_for: float
    """Seconds for which the keeper renews leases while the worker does not."""


class KeeperProcess:
    """The keeper of this process."""

    def __init__(self, clock: Clock) -> None:
        self.board = Board()
        self._pid = os.getpid()
        self._clock = clock
        self._told: dict[int, bytes] = {}
        self._process: subprocess.Popen[bytes] | None = None
        self._again_at = float("-inf")
        self._delay = _RESTARTS.first
        self._heard = b""
        self._lock = threading.Lock()
        atexit.register(self._end)

    @property
    def pid(self) -> int | None:
        """The pid of the keeper, if there is one."""
        return None if self._process is None else self._process.pid

    def of_this_process(self) -> bool:
        """Whether this process started the keeper, and is not a fork of the one that did."""
        return self._pid == os.getpid()

    def open(self, told: dict[str, Any], state: SessionState, emit: Emit) -> int | None:
        """Add a session; return its number, or None if there is no room."""
        with self._lock:
            number = next((each for each in range(SESSIONS) if each not in self._told), None)
            if number is not None:
                message = marshal.dumps((number, told))
                self._told[number] = len(message).to_bytes(4, "big") + message
                self.board.open_session(number, state)
                if self._process is None or self._process.poll() is not None:
                    self._start(emit)
                else:
                    self._send(self._told[number])
            return number

    def close(self, number: int) -> None:
        """Remove a session."""
        with self._lock:
            self.board.close_session(number)
            del self._told[number]

    def check(self, emit: Emit) -> None:
        """Report the keeper's problems, and replace it if it died."""
        with self._lock:
            process = self._process
            if process is not None and process.poll() is not None:
                self._listen(process, emit)
                emit(LoopError("lease keeper", f"it ended with {process.returncode}; another one starts in {self._delay:g} s"))
                self._close_pipes(process)
                self._process = None
                self._again_at = self._clock.monotonic() + self._delay
                self._delay = _RESTARTS.after(self._delay)
            elif process is not None:
                self._listen(process, emit)
            elif self._clock.monotonic() >= self._again_at:
                self._start(emit)

    def _start(self, emit: Emit) -> None:
        try:
            if not sys.executable or getattr(sys, "frozen", False):
                raise OSError("the path of the Python interpreter is not known")
            self._process = process = subprocess.Popen(  # noqa: S603
                [sys.executable, "-I", "-S", "-c", _CODE, str(_ROOT), str(self.board.file), str(self._pid)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=(self.board.file,),
                start_new_session=True,
                bufsize=0,
            )
        except OSError as error:
            self._again_at = float("inf")
            emit(LoopError("lease keeper", f"it could not be started, so a stuck interpreter costs leases: {error}"))
            return
        assert process.stdout is not None
        os.set_blocking(process.stdout.fileno(), False)
        for message in self._told.values():
            self._send(message)

    def _send(self, message: bytes) -> None:
        if self._process is not None and self._process.stdin is not None:
            with suppress(OSError):  # it is dead: `check` starts another, which is told everything
                self._process.stdin.write(message)

    def _listen(self, process: subprocess.Popen[bytes], emit: Emit) -> None:
        assert process.stdout is not None
        self._heard += process.stdout.read(1 << 16) or b""
        *lines, self._heard = self._heard.split(b"\n")
        for line in lines:
            emit(LoopError("lease keeper", line.decode(errors="replace")))

    def _end(self) -> None:
        """Let the keeper end before this process does."""
        with self._lock:
            process, self._process, self._again_at = self._process, None, float("inf")
        if process is not None and self.of_this_process():
            self._close_pipes(process)
            with suppress(subprocess.TimeoutExpired):
                process.wait(_END_WITHIN)

    @staticmethod
    def _close_pipes(process: subprocess.Popen[bytes]) -> None:
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()


class KeptSession:
    """The claims of one lease renewer on the board. Any thread may call it."""

    def __init__(self, keeper: KeeperProcess, number: int, emit: Emit) -> None:
        self._keeper = keeper
        self._number = number
        self._emit = emit
        board = keeper.board
        self.start, self.renew, self.bound, self.drop, self.kept_at = (
            board.start,
            board.renew,
            board.bound,
            board.drop,
            board.kept_at,
        )

    def set_claiming(self, claiming: bool) -> None:
        """Show whether a claim is on its way."""
        self._keeper.board.set_claiming(self._number, claiming)

    def hold(self, task_id: str, version: int, claimed_at: float, ends_at: float) -> int | None:
        """Show a claim to the keeper; return its slot."""
        return self._keeper.board.hold(self._number, task_id, version, claimed_at, ends_at)

    def beat(self, at: float) -> int:
        """Show that this process is alive, and check that the keeper is.

        Returns the native id of the thread that held the interpreter lock since the last beat, or `UNKNOWN`; 0: none did.
        """
        self._keeper.board.beat(self._number, at)
        self._keeper.check(self._emit)
        return self._keeper.board.take_holder(self._number)

    def close(self) -> None:
        """End the session; the claims stay as they are."""
        self._keeper.close(self._number)


_keeper: KeeperProcess | None = None
_making = threading.Lock()


def keeper_pid() -> int | None:
    """Return the pid of the keeper of this process, if there is one."""
    keeper = _keeper
    return None if keeper is None or not keeper.of_this_process() else keeper.pid


def open_session(kept_by: KeptBy, lease: float, beat_every: float, clock: Clock, emit: Emit) -> KeptSession | None:
    """Show a lease renewer to the keeper of this process, which starts if it does not run; None if there are too many."""
    global _keeper
    with _making:
        if _keeper is None or not _keeper.of_this_process():
            _keeper = KeeperProcess(clock)
        keeper = _keeper
    told = {"actor": kept_by.actor, "arguments": kept_by.arguments, "path": sys.path}
    number = keeper.open(told, SessionState(clock.monotonic(), lease, beat_every, kept_by.keep_for), emit)
    return None if number is None else KeptSession(keeper, number, emit)
