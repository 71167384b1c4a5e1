"""The machine that a worker runs on: threads, processes, files, host name and pid. The simulation provides its own (D10)."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from treadle.engine.process_identity import has_ended, kernel_identity, pid_has_ended, process_identity
from treadle.kernel.telemetry.events import Emit
from treadle.model.clock import Clock
from treadle.workers.builtins import Scripts
from treadle.workers.call import Executor
from treadle.workers.executor import SystemExecutor
from treadle.workers.keeper.link import keeper_pid
from treadle.workers.lease_renewer import LeaseRenewer, RenewerThread
from treadle.workers.scripts import ScriptRunner

if TYPE_CHECKING:
    from treadle.kernel.watchers.scan import SourceReader


class ClosableExecutor(Executor, Protocol):
    """An executor that the host closes."""

    def close(self) -> None:
        """Accept no more calls; a call that cannot be stopped runs to its end."""


class Machine(Protocol):
    """Everything that a worker host takes from its machine, besides the clock and the ids."""

    host: str
    """The host name."""
    pid: int
    """The pid of this process."""
    owner_ids: set[str]
    """Owner ids of the worker hosts started in this process; they live as long as it does."""

    def is_alive(self, pid: int) -> bool:
        """Whether another process of this machine has that pid. This process does not count: the pid was reused."""

    def identity(self) -> str | None:
        """Return the identity of this process, with its lease keeper; None if it has none. Any thread may call it."""

    def has_ended(self, identity: str) -> bool | None:
        """Whether the process of that identity, and its lease keeper, have ended; None if that cannot be seen from here."""

    def executor(self, threads: int) -> ClosableExecutor:
        """Return the executor for handlers that must not run on the event loop."""

    def source_reader(self, executor: Executor, clock: Clock, allowed: Sequence[str]) -> SourceReader:
        """Return the file and network access for watchers, in threads of the executor."""

    def scripts(self) -> Scripts:
        """Return the runner of scripts."""

    def renew_leases(self, renewer: LeaseRenewer, emit: Emit) -> Callable[[], Awaitable[None]]:
        """Tick the renewer even while the event loop is blocked; return a function that stops it after a last heartbeat."""


_HERE: set[str] = set()


class SystemMachine:
    """The machine of this process."""

    def __init__(self) -> None:
        self.host = socket.gethostname()
        self.pid = os.getpid()
        self.owner_ids = _HERE
        self._kernel = kernel_identity(self.host)

    def is_alive(self, pid: int) -> bool:
        """Look for the process; a zombie, which has ended but was not reaped, is not alive."""
        return pid != self.pid and not pid_has_ended(pid)

    def identity(self) -> str | None:
        """Return the identity of this process and its keeper, if it has one."""
        return process_identity(self._kernel, self.pid, keeper_pid())

    def has_ended(self, identity: str) -> bool | None:
        """Look for the processes, if they are of this kernel."""
        return has_ended(identity, self._kernel)

    def executor(self, threads: int) -> ClosableExecutor:
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
        renewer.use_keeper(asyncio.get_running_loop())
        thread = RenewerThread(renewer, emit)
        thread.start()

        async def stop() -> None:
            await asyncio.to_thread(thread.stop)

        return stop
