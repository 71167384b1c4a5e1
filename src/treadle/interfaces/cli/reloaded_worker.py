"""The worker of `treadle dev`: a child process that is replaced when the code changes.

The new process starts first. Then the old one stops claiming, lets its running work finish or releases it, and ends. If the new
one cannot start, the old one stays.
"""

from __future__ import annotations

import asyncio
import json
import sys
from asyncio.subprocess import PIPE, Process
from dataclasses import dataclass
from typing import Any

from treadle.interfaces.cli.fleet import worker_command
from treadle.interfaces.cli.hosting import Serving
from treadle.interfaces.cli.messages import tell_error, tell_note
from treadle.interfaces.cli.session import Session, no_directory
from treadle.settings import child_environment

_ENDS_IN = 5.0
"""Seconds that a process gets to end after its grace, before it is killed."""
_SHORT_LIFE = 5.0
"""A process that ends by itself within these seconds is not started again until the next change."""


@dataclass(slots=True)
class _Child:
    process: Process
    relaying: asyncio.Task[None]
    event: dict[str, Any]
    started: float


class ReloadedWorker:
    """Starts, replaces and stops the process."""

    def __init__(self, session: Session, options: Serving) -> None:
        self._session = session
        self._options = options
        self._child: _Child | None = None

    @property
    def event(self) -> dict[str, Any]:
        """The `started` event of the process; empty if none runs."""
        return {} if self._child is None else self._child.event

    async def load(self, handlers: list[str]) -> bool:
        """Run this code: start a process and, once it works, stop the one before. Returns whether it works."""
        new = await self._start(handlers)
        if new is None:
            return False
        old, self._child = self._child, new
        if old is not None:
            await self._stop(old)
        return True

    async def stop(self) -> None:
        """Stop the process; its running work gets the grace to finish."""
        old, self._child = self._child, None
        if old is not None:
            await self._stop(old)

    def ended(self) -> bool:
        """Whether the process has ended by itself; forget it then. True only if it should be started again."""
        child = self._child
        if child is None or child.process.returncode is None:
            return False
        self._child = None
        again = asyncio.get_running_loop().time() - child.started > _SHORT_LIFE
        then = "it starts again" if again else "it starts again after the next change"
        tell_note(f"The worker process {child.process.pid} ended with code {child.process.returncode}; {then}.")
        return again

    async def _start(self, handlers: list[str]) -> _Child | None:
        chosen = {"TREADLE_STORE": self._session.chosen.store, "TREADLE_NAMESPACE": self._session.chosen.namespace}
        given = {name: value for name, value in chosen.items() if value} | no_directory(self._session)
        # without compiled files: Python takes those of two versions in one second for the same
        environment = child_environment(TREADLE_SERVER="", PYTHONDONTWRITEBYTECODE="1", **given)
        verbose = ["--verbose"] if self._session.chosen.verbose else []
        process = await asyncio.create_subprocess_exec(
            *worker_command(handlers, self._options), *verbose,
            stdin=PIPE, stdout=PIPE, stderr=PIPE, env=environment, start_new_session=True,
        )  # fmt: skip
        relaying = asyncio.create_task(self._relay(process))
        assert process.stdout is not None
        try:
            line = await process.stdout.readline()
        except BaseException:
            process.kill()
            raise
        if not line:
            await process.wait()
            await relaying
            return None
        return _Child(process, relaying, json.loads(line), asyncio.get_running_loop().time())

    async def _relay(self, process: Process) -> None:
        """Print the messages of the process; its errors, which are JSON, as this process prints its own."""
        assert process.stderr is not None
        async for raw in process.stderr:
            text = raw.decode("utf-8", "replace")
            try:
                error = json.loads(text)["error"]
                tell_error(str(error["code"]), str(error["message"]), as_json=self._session.json)
            except (ValueError, TypeError, KeyError):
                sys.stderr.write(text)
                sys.stderr.flush()

    async def _stop(self, child: _Child) -> None:
        process = child.process
        if process.returncode is None:
            process.terminate()
        try:
            async with asyncio.timeout(self._options.grace + _ENDS_IN):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()
        await child.relaying
