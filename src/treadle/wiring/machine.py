"""The machine that a worker runs on: threads, processes, files, who it is. Simulation brings its own (D10)."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable
from typing import Protocol

from treadle.kernel.telemetry.events import Emit
from treadle.kernel.watchers.scan import Looks
from treadle.model.clock import Clock
from treadle.workers.builtins import Scripts
from treadle.workers.call import Executor
from treadle.workers.executor import SystemExecutor
from treadle.workers.lease_renewer import LeaseRenewer, RenewerThread
from treadle.workers.scan import Scanner
from treadle.workers.scripts import ScriptRunner


class ClosableExecutor(Executor, Protocol):
    """An executor that is given back."""

    def close(self) -> None:
        """Take no more; what cannot be stopped is left to finish."""


class Machine(Protocol):
    """What a worker's host takes from its surroundings, besides the clock and the ids of its engine."""

    host: str
    """The name of the machine."""
    pid: int
    """The number of this process on it."""
    owner_ids: set[str]
    """Of hosts that were started in this process: alive as long as it is."""

    def is_alive(self, pid: int) -> bool:
        """Whether a process of this machine has that pid; ours counts for none, as what has it now is this new one."""

    def executor(self, threads: int) -> ClosableExecutor:
        """Where handlers run that must not run on the event loop."""

    def looks(self, executor: Executor, clock: Clock) -> Looks:
        """How watchers look at files and addresses, in threads of the executor."""

    def scripts(self) -> Scripts:
        """Where scripts run."""

    def renew_leases(self, renewer: LeaseRenewer, emit: Emit) -> Callable[[], Awaitable[None]]:
        """Tick the renewer even while the event loop is blocked; return a function that stops it after a last heartbeat."""


_HERE: set[str] = set()


class SystemMachine:
    """The machine that this is."""

    def __init__(self) -> None:
        self.host = socket.gethostname()
        self.pid = os.getpid()
        self.owner_ids = _HERE

    def is_alive(self, pid: int) -> bool:
        """Ask the system."""
        if pid == self.pid:
            return False
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
        except OSError:
            return True  # it is somebody else's
        return True

    def executor(self, threads: int) -> ClosableExecutor:
        """Real threads and processes."""
        return SystemExecutor(threads)

    def looks(self, executor: Executor, clock: Clock) -> Looks:
        """Real files and addresses."""
        return Scanner(executor, clock)

    def scripts(self) -> Scripts:
        """Processes of their own, started with the first script."""
        return ScriptRunner()

    def renew_leases(self, renewer: LeaseRenewer, emit: Emit) -> Callable[[], Awaitable[None]]:
        """Tick it in a thread."""
        thread = RenewerThread(renewer, emit)
        thread.start()

        async def stop() -> None:
            await asyncio.to_thread(thread.stop)

        return stop
