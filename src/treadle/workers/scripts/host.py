"""The host process of scripts, as Treadle sees it: start it, run and kill scripts, close it."""

from __future__ import annotations

import asyncio
import itertools
import os
import socket
import subprocess
from pathlib import Path
from typing import Any

import msgspec

from treadle.workers.scripts.limits import ScriptLimits
from treadle.workers.scripts.sandbox import wire

_LAUNCH = "import sys; sys.path.append(sys.argv[1]); from sandbox.parent import main; main(int(sys.argv[2]), sys.argv[3])"
_HERE = str(Path(__file__).parent)
_START_FOR = 30.0
_END_FOR = 5.0


class HostGone(Exception):
    """The process ended, or did not answer a request."""


class HostRefused(Exception):
    """The process could not fork."""


class Ended(msgspec.Struct, frozen=True):
    """The end of a script's process: `status` is its exit status or minus the signal, `cpu_for` its CPU time in seconds."""

    status: int
    timeout: bool
    cpu_for: float


class Host:
    """One host process. `start` it, then `run` scripts; once it is `gone`, it cannot be used again."""

    def __init__(self, process: subprocess.Popen[bytes], control: socket.socket) -> None:
        self.gone = False
        self._process = process
        self._control = control
        self._received = bytearray()
        self._ids = itertools.count(1)
        self._ready: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._ends: dict[int, asyncio.Future[Ended]] = {}

    @classmethod
    async def start(cls, python: str, limits: ScriptLimits) -> Host:
        """Start the process and wait until it has loaded all modules; raises OSError or `HostGone`."""
        # Its working directory is empty and is deleted once the process runs, so that no file can be created there.
        import tempfile  # slow to load, and most workers run no scripts

        place = Path(tempfile.mkdtemp(prefix="treadle-script-"))
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                process = _launch(python, limits, theirs.fileno(), place)
            ours.setblocking(False)
            host = cls(process, ours)
            asyncio.get_running_loop().add_reader(ours, host._readable)
            await host._until_ready()
            return host
        except OSError:
            ours.close()
            raise
        finally:
            os.rmdir(place)  # noqa: PTH106 - rare and quick

    async def _until_ready(self) -> None:
        try:
            async with asyncio.timeout(_START_FOR):
                await self._ready
        except TimeoutError:
            await self.close()
            raise HostGone(f"it was not ready after {_START_FOR:g} s") from None
        except BaseException:
            await self.close()
            raise

    @property
    def pid(self) -> int:
        return self._process.pid

    def run(self, channel: socket.socket) -> tuple[int, asyncio.Future[Ended]]:
        """Fork a child that reads a request from the channel and writes its answer to it; return its id and a future of its end."""
        script_id = next(self._ids)
        future: asyncio.Future[Ended] = asyncio.get_running_loop().create_future()
        self._ends[script_id] = future
        try:
            socket.send_fds(self._control, [wire.pack({"run": script_id})], [channel.fileno()])
        except OSError as error:  # it is gone, or stuck with a full buffer
            self.give_up(str(error))
        return script_id, future

    def kill(self, script_id: int) -> None:
        """Kill the script's process if it still runs."""
        try:
            if not self.gone:
                self._control.send(wire.pack({"kill": script_id}))
        except OSError as error:
            self.give_up(str(error))

    def give_up(self, why: str) -> None:
        """Kill a host that misbehaves; everything in progress raises `HostGone`."""
        self._process.kill()
        self._lose(why)

    async def close(self) -> None:
        """End the process and all its children, and wait for its end."""
        self._lose("it was closed")
        try:
            # It ends at the end of its input, and kills its children.
            await asyncio.to_thread(self._process.wait, _END_FOR)
        except subprocess.TimeoutExpired:
            self._process.kill()
            await asyncio.to_thread(self._process.wait)

    def _readable(self) -> None:
        try:
            data = self._control.recv(65536)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._lose("it ended unexpectedly")
            return
        self._received += data
        for message in wire.messages(self._received):
            self._take(message)

    def _take(self, message: dict[str, Any]) -> None:
        if "ready" in message:
            if not self._ready.done():
                self._ready.set_result(message["ready"])
        elif "ended" in message:
            future = self._ends.pop(message["ended"])
            if not future.done():
                future.set_result(Ended(message["status"], message["timeout"], message["cpu"]))
        elif "refused" in message:
            future = self._ends.pop(message["refused"])
            if not future.done():
                future.set_exception(HostRefused(message["why"]))

    def _lose(self, why: str) -> None:
        if not self.gone:
            self.gone = True
            asyncio.get_running_loop().remove_reader(self._control)
            self._control.close()
        waiting: list[asyncio.Future[Any]] = [self._ready, *self._ends.values()]
        for future in waiting:
            if not future.done():
                future.set_exception(HostGone(why))
                future.exception()  # a future without a waiter must not be reported
        self._ends.clear()


def _launch(python: str, limits: ScriptLimits, control: int, place: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(  # noqa: S603 - our own interpreter and arguments
        [python, "-I", "-S", "-B", "-X", "utf8", "-c", _LAUNCH, _HERE, str(control), limits.as_settings()],
        cwd=place,
        env={},
        pass_fds=[control],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
