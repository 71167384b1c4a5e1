"""The worker's side of the lease sidecar: starts the process, shows it the claims, and replaces it when it dies.

Each lease renewer has a sidecar. It starts with the renewer, before anything is claimed, because a handler that holds the
interpreter lock would not let it start later; it ends with the renewer.
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
from treadle.workers.lease_sidecar.process import LeaseTable

_ROOT = Path(__file__).parents[3]
_CODE = (
    "import sys; sys.path.insert(0, sys.argv[1]); from treadle.workers.lease_sidecar.process import main; "
    "main(int(sys.argv[2]), int(sys.argv[3]))"
)
_RESTARTS = Backoff(1.0, 60.0)
"""Seconds until a dead sidecar is replaced."""

_END_WITHIN = 2.0
_NEVER = float("inf")


class SidecarOptions(msgspec.Struct, frozen=True):
    """How the sidecar acts on the store."""

    actor: str
    """`MODULE:NAME` of an `Actor`."""
    arguments: dict[str, Any]
    """Its arguments: numbers and texts. They may contain credentials, so they are sent through a pipe."""
    keep_for: float
    """Seconds for which the sidecar renews leases while the worker does not."""


class LeaseSidecar:
    """The sidecar of one lease renewer. Any thread may call it."""

    def __init__(self, sidecar_options: SidecarOptions, lease: float, beat_every: float, clock: Clock, emit: Emit) -> None:
        self.table = LeaseTable()
        self.table.open(clock.monotonic(), lease, beat_every, sidecar_options.keep_for)
        self._order = marshal.dumps({"actor": sidecar_options.actor, "arguments": sidecar_options.arguments, "path": sys.path})
        self._pid = os.getpid()
        self._clock = clock
        self._emit = emit
        self._process: subprocess.Popen[bytes] | None = None
        self._again_at = float("-inf")
        self._delay = _RESTARTS.first
        self._received = b""
        self._lock = threading.Lock()
        _sidecars.add(self)
        atexit.register(self.close)
        self._start()

    @property
    def pid(self) -> int | None:
        """The pid of the process, if there is one, and this process, not one that has forked it, has started it."""
        return None if self._process is None or self._pid != os.getpid() else self._process.pid

    def beat(self, at: float) -> int:
        """Show that this process is alive, and replace the sidecar if it died.

        Returns the native id of the thread that held the interpreter lock since the last beat, or `UNKNOWN`; 0: none did.
        """
        self.table.state.beat_at = at
        self.check()
        return self.table.take_holder()

    def check(self) -> None:
        """Report the sidecar's problems, and replace it if it died."""
        with self._lock:
            if (process := self._process) is not None:
                ended = process.poll() is not None
                self._report(process)
                if ended:
                    text = f"it ended with {process.returncode}; another one starts in {self._delay:g} s"
                    self._emit(LoopError("lease sidecar", text))
                    _close_pipes(process)
                    self._process, self._again_at = None, self._clock.monotonic() + self._delay
                    self._delay = _RESTARTS.after(self._delay)
            elif self._clock.monotonic() >= self._again_at:
                self._start()

    def _start(self) -> None:
        try:
            if not sys.executable or getattr(sys, "frozen", False):
                raise OSError("the path of the Python interpreter is not known")
            self._process = process = subprocess.Popen(  # noqa: S603
                [sys.executable, "-I", "-S", "-c", _CODE, str(_ROOT), str(self.table.file), str(self._pid)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=(self.table.file,),
                start_new_session=True,
                bufsize=0,
            )
        except OSError as error:
            self._again_at = _NEVER
            self._emit(LoopError("lease sidecar", f"it could not be started, so a stuck interpreter costs leases: {error}"))
            return
        assert process.stdin is not None
        assert process.stdout is not None
        os.set_blocking(process.stdout.fileno(), False)
        with suppress(OSError):  # it is dead: `check` starts another
            process.stdin.write(self._order)

    def _report(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        self._received += process.stdout.read(1 << 16) or b""
        *lines, self._received = self._received.split(b"\n")
        for line in lines:
            self._emit(LoopError("lease sidecar", line.decode(errors="replace")))

    def close(self) -> None:
        """End the process, before this one does; the claims stay as they are. Idempotent."""
        with self._lock:
            process, self._process, self._again_at = self._process, None, _NEVER
        _sidecars.discard(self)
        atexit.unregister(self.close)
        if self._pid == os.getpid():
            self.table.close()
            if process is not None:
                _close_pipes(process)
                with suppress(subprocess.TimeoutExpired):
                    process.wait(_END_WITHIN)


def _close_pipes(process: subprocess.Popen[bytes]) -> None:
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with suppress(OSError):
                pipe.close()


_sidecars: set[LeaseSidecar] = set()


def sidecar_pids() -> list[int]:
    """Return the pids of the sidecars of this process."""
    return [pid for sidecar in tuple(_sidecars) if (pid := sidecar.pid) is not None]
