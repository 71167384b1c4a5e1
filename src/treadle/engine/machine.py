"""The machine that a worker runs on: threads, processes, files, host name and pid. The simulation provides its own (D10)."""

from __future__ import annotations

import asyncio
import os
import socket
import uuid
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from treadle.kernel.telemetry.events import Emit
from treadle.model.clock import Clock
from treadle.workers.builtins import Scripts
from treadle.workers.call import Executor
from treadle.workers.executor import SystemExecutor
from treadle.workers.lease_renewer import LeaseRenewer, RenewerThread
from treadle.workers.lease_sidecar.link import sidecar_pids
from treadle.workers.scripts import ScriptRunner

if TYPE_CHECKING:
    from treadle.kernel.watchers.scan import SourceReader


class HostMachine(Protocol):
    """Everything that a worker host takes from its machine, besides the clock and the ids."""

    host: str
    """The host name."""
    pid: int
    """The pid of this process."""

    def identity(self) -> str | None:
        """Return the identity of this process, with its lease sidecar; None if it has none. Any thread may call it."""

    def has_ended(self, identity: str) -> bool | None:
        """Whether the process of that identity, and its lease sidecar, have ended; None if that cannot be seen from here."""

    def executor(self, threads: int) -> Executor:
        """Return the executor for handlers that must not run on the event loop."""

    def source_reader(self, executor: Executor, clock: Clock, allowed: Sequence[str]) -> SourceReader:
        """Return the file and network access for watchers, in threads of the executor."""

    def scripts(self) -> Scripts:
        """Return the runner of scripts."""

    def renew_leases(self, renewer: LeaseRenewer, emit: Emit) -> Callable[[], Awaitable[None]]:
        """Tick the renewer even while the event loop is blocked; return a function that stops it after a last heartbeat."""


def default_name(machine: HostMachine, owner_id: str) -> str:
    """Return a name for a server that was started without one: new for each start, because containers share hosts and pids."""
    return f"{machine.host}-{machine.pid}-{owner_id[-6:]}"


class SystemMachine:
    """The machine of this process."""

    def __init__(self) -> None:
        self.host = socket.gethostname()
        self.pid = os.getpid()
        self._kernel = kernel_identity(self.host)

    def identity(self) -> str | None:
        """Return the identity of this process and its sidecars."""
        return process_identity(self._kernel, self.pid, *sidecar_pids())

    def has_ended(self, identity: str) -> bool | None:
        """Look for the processes, if they are of this kernel."""
        return has_ended(identity, self._kernel)

    def executor(self, threads: int) -> Executor:
        """Return real threads and processes."""
        return SystemExecutor(threads)

    def source_reader(self, executor: Executor, clock: Clock, allowed: Sequence[str]) -> SourceReader:
        """Return access to real files and URLs."""
        from treadle.workers.scanner import Scanner  # most workers have no watchers

        return Scanner(executor, clock, allowed)

    def scripts(self) -> Scripts:
        """Return a runner that starts its processes with the first script."""
        return ScriptRunner()

    def renew_leases(self, renewer: LeaseRenewer, emit: Emit) -> Callable[[], Awaitable[None]]:
        """Tick the renewer in a thread, with a process that keeps the leases when no thread can run."""
        renewer.start_sidecar(asyncio.get_running_loop())
        thread = RenewerThread(renewer, emit)
        thread.start()

        async def stop() -> None:
            await asyncio.to_thread(thread.stop)

        return stop


# --- the identity of a process ---
#
# The identity of a process: text by which other processes of the same kernel can see whether it has ended.
#
# It names the kernel with its namespaces and host name, and the pid and start time of the process and of its lease sidecars, which
# act for the workers after its death: the workers' work is free for others only when all have ended. Processes of another boot,
# machine or container have another kernel part, and cannot be judged (D80). Systems without /proc have no start times: there a
# reused pid counts as alive.

_PROC = Path("/proc")
_ENDED = ("Z", "X", "x")
_RANDOM_NODE = 1 << 40
"""Set in a network address that Python made up, because it found none."""


def kernel_identity(host: str, proc: Path = _PROC) -> str | None:
    """Return the identity of this kernel with its namespaces and the host; None if it has none.

    A /proc of another pid namespace, in which this process has another pid, does not show the processes that signals reach.
    """
    try:
        boot = (proc / "sys/kernel/random/boot_id").read_text().strip()
        spaces = [str((proc / "self/ns" / name).readlink()) for name in ("pid", "time") if (proc / "self/ns" / name).is_symlink()]
        own = str((proc / "self").readlink()) == str(os.getpid())
        return "/".join((boot, *spaces, host.replace(" ", "-"))) if boot and spaces and own else None
    except OSError:
        node = uuid.getnode()
        return None if proc.exists() or node & _RANDOM_NODE else f"{host.replace(' ', '-')}/{node:012x}"


def process_identity(kernel: str | None, *pids: int) -> str | None:
    """Return the identity of these processes of this kernel; None if they cannot be identified."""
    starts = [f"{pid}:{_start_of(pid)}" for pid in pids]
    return None if kernel is None else " ".join((kernel, *starts))


def has_ended(identity: str, kernel: str | None) -> bool | None:
    """Return whether all processes of the identity have ended; None if they are not of this kernel."""
    theirs, *processes = identity.split(" ")
    if kernel is None or theirs != kernel or not processes:
        return None
    try:
        return all(pid_has_ended(int(pid), start) for pid, _, start in (process.partition(":") for process in processes))
    except ValueError:  # another version wrote it
        return None


def pid_has_ended(pid: int, start: str = "") -> bool:
    """Whether the process is gone, a zombie, or another one with its pid. One that cannot be read belongs to another user."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        pass
    status = _stat(pid)
    return status is not None and (status[0] in _ENDED or (start != "" and status[1] != start))


def _start_of(pid: int) -> str:
    status = _stat(pid)
    return status[1] if status else ""


def _stat(pid: int) -> tuple[str, str] | None:
    """Return the state and start time of a process; None if they cannot be read."""
    try:
        fields = (_PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return (fields[0], fields[19]) if len(fields) > 19 else None
