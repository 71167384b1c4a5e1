"""Worker processes under one parent: start, watch, restart and stop them together.

Children lead their own sessions, so Ctrl-C reaches only the parent, which passes it on. They stop when their stdin closes, so
none is left behind when the parent is killed.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Callable

from treadle.interfaces.cli.exits import INTERRUPTED
from treadle.interfaces.cli.hosting import Serving
from treadle.interfaces.cli.session import Session, no_directory
from treadle.model.retry import Backoff
from treadle.model.text import safe_logger
from treadle.settings import child_environment

_RESTARTS = Backoff(1.0, 30.0)

_log = safe_logger("treadle")


def worker_command(handlers: list[str], options: Serving) -> list[str]:
    """The command line of one worker process; its environment names the store."""
    command = [sys.executable, "-m", "treadle", "worker", "--json", "--stop-at-eof"]
    for name in handlers:
        command += ["--handlers", name]
    for name in options.task_lists:
        command += ["--list", name]
    if options.lease is not None:
        command += ["--lease", str(options.lease)]
    if options.poll_interval is not None:
        command += ["--poll-interval", str(options.poll_interval)]
    numbers = {"concurrency": options.concurrency, "threads": options.threads, "isolated": options.isolated}
    for option, number in numbers.items():
        if number is not None:
            command += [f"--{option}", str(number)]
    if options.topology is not None:
        command += ["--topology", options.topology]
    for name in options.roles:
        command += ["--role", name]
    for name in options.also:
        command += ["--also", name]
    if options.llm:
        command.append("--llm")
    return [*command, "--grace", str(options.grace)]


class Fleet:
    """The child processes."""

    def __init__(self, session: Session, handlers: list[str], options: Serving, count: int) -> None:
        self._command = worker_command(handlers, options) + (["--verbose"] if session.chosen.verbose else [])
        chosen = {"TREADLE_STORE": session.chosen.store, "TREADLE_NAMESPACE": session.chosen.namespace}
        given = {name: value for name, value in chosen.items() if value} | no_directory(session)
        self._environment = child_environment(TREADLE_SERVER="", **given)  # workers need the store, not a server
        self._count = count
        self._name = options.name
        self._children: set[Process] = set()
        self._interrupts = 0
        self._stopping = asyncio.Event()

    async def run(self, started: Callable[[list[int]], None]) -> None:
        """Keep the children running until SIGTERM or SIGINT, then wait for them to stop; a second SIGINT kills them."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._stop)
        loop.add_signal_handler(signal.SIGINT, self._interrupt)
        first = [await self._start(number) for number in range(1, self._count + 1)]
        started([child.pid for child in first])
        try:
            await asyncio.gather(*(self._keep(child, number) for number, child in enumerate(first, 1)))
        finally:
            self._kill()

    async def _start(self, number: int) -> Process:
        named = [] if self._name is None else ["--name", f"{self._name}-{number}"]
        child = await asyncio.create_subprocess_exec(
            *self._command, *named, stdin=PIPE, stdout=DEVNULL, env=self._environment, start_new_session=True
        )
        self._children.add(child)
        return child

    async def _keep(self, child: Process, number: int) -> None:
        """Restart the child at one position whenever it dies, with backoff."""
        pause = _RESTARTS.first
        while True:
            began = asyncio.get_running_loop().time()
            code = await child.wait()
            self._children.discard(child)
            if self._stopping.is_set():
                return
            if asyncio.get_running_loop().time() - began > 2 * _RESTARTS.cap:
                pause = _RESTARTS.first
            _log.warning("worker process %d ended with code %d; a new one starts in %g s", child.pid, code, pause)
            try:
                async with asyncio.timeout(pause):
                    await self._stopping.wait()
                return
            except TimeoutError:
                pause = _RESTARTS.after(pause)
            child = await self._start(number)
            if self._stopping.is_set():
                child.terminate()

    def _stop(self) -> None:
        self._stopping.set()
        for child in self._children:
            if child.returncode is None:
                child.terminate()

    def _interrupt(self) -> None:
        self._interrupts += 1
        if self._interrupts > 1:
            self._kill()
            os._exit(INTERRUPTED)
        self._stop()

    def _kill(self) -> None:
        for child in self._children:
            if child.returncode is None:
                child.kill()
