"""The worker processes of the demo: start, kill, stop, and never leave one behind."""

from __future__ import annotations

import asyncio
import signal
from asyncio.subprocess import DEVNULL, PIPE, Process
from pathlib import Path
from typing import Self

from treadle.engine import Engine
from treadle.interfaces.cli.hosting import Serving, worker_command
from treadle.model.errors import TreadleError
from treadle.settings import child_environment

_START_PATIENCE = 30.0
_STOP_PATIENCE = 10.0
_TAIL = 600


class CrewFailed(TreadleError):
    """A worker process of the demo misbehaved."""

    code = "demo_failed"


class Crew:
    """Worker processes on one store; leaving the context kills those still running."""

    def __init__(self, engine: Engine, url: str, namespace: str, folder: Path, lease: float) -> None:
        self._engine = engine
        self._log = folder / "workers.log"
        options = Serving(("default",), concurrency=4, threads=4, isolated=1, grace=5, lease=lease)
        self._command = worker_command(["treadle.interfaces.cli.demo.handlers"], options)
        self._environment = child_environment(
            TREADLE_SERVER="", TREADLE_STORE=url, TREADLE_NAMESPACE=namespace, TREADLE_CRASH_AT=""
        )
        self._workers: dict[int, Process] = {}
        self.owners: dict[str, int] = {}
        """The pid for each owner id."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for worker in self._workers.values():
            if worker.returncode is None:
                worker.kill()
        await asyncio.gather(*(worker.wait() for worker in self._workers.values()))

    async def start(self, count: int) -> None:
        """Start them, and wait until all are running."""
        with self._log.open("ab") as log:
            for _ in range(count):
                worker = await asyncio.create_subprocess_exec(
                    *self._command, stdin=PIPE, stdout=DEVNULL, stderr=log, env=self._environment, start_new_session=True
                )
                self._workers[worker.pid] = worker
        try:
            async with asyncio.timeout(_START_PATIENCE):
                while len(self.owners) < count:
                    self.check()
                    await asyncio.sleep(0.05)
                    for shown in await self._engine.kernel.reads.list_servers():
                        if shown.server.pid in self._workers and shown.state == "running":
                            self.owners[shown.server.id] = shown.server.pid
        except TimeoutError:
            raise CrewFailed(f"The workers did not start within {_START_PATIENCE:g} s. {self.tail()}") from None

    def kill(self, owner_id: str) -> int:
        """Send SIGKILL to the worker with this owner id and return its pid."""
        pid = self.owners[owner_id]
        self._workers[pid].send_signal(signal.SIGKILL)
        return pid

    def check(self, killed_pid: int = 0) -> None:
        """Raise if a worker died unexpectedly."""
        for pid, worker in self._workers.items():
            if worker.returncode is not None and pid != killed_pid:
                raise CrewFailed(f"Worker {pid} ended with code {worker.returncode}. {self.tail()}")

    async def stop(self) -> None:
        """Send SIGTERM to all running workers and wait for them."""
        for worker in self._workers.values():
            if worker.returncode is None:
                worker.terminate()
        try:
            async with asyncio.timeout(_STOP_PATIENCE):
                await asyncio.gather(*(worker.wait() for worker in self._workers.values()))
        except TimeoutError:
            raise CrewFailed(f"The workers did not stop within {_STOP_PATIENCE:g} s. {self.tail()}") from None

    def stopped_well(self, killed_pid: int) -> bool:
        """Whether the killed worker ended by SIGKILL and all others with code 0."""
        codes = {pid: worker.returncode for pid, worker in self._workers.items()}
        return all(code == (-signal.SIGKILL if pid == killed_pid else 0) for pid, code in codes.items())

    def tail(self) -> str:
        """The end of the workers' log."""
        try:
            return f"Their log ends: {self._log.read_text('utf-8', 'replace')[-_TAIL:]}"
        except OSError:
            return ""
