"""Runs scripts in separate processes with limits: the runner, and the host process that forks a child per script."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec

from treadle.model.errors import InvalidPayload, InvalidPolicy, PayloadTooLarge, TreadleError
from treadle.model.scripts import SCRIPT_BUILTINS, SCRIPT_MODULES
from treadle.model.values import PAYLOAD_LIMIT, Json, encode
from treadle.workers.scripts import sandbox


class ScriptError(TreadleError, code="script_error"):
    """A script failed: `message` is the error, `type` the exception's name, `line` the line in the AFL source."""

    def __init__(self, message: str, *, source: str, line: int | None = None, type: str | None = None) -> None:  # noqa: A002
        place = source if line is None else f"{source}, line {line}"
        text = ": ".join(part for part in (type, message) if part)
        super().__init__(f"{place}: {text}")
        self.message, self.source, self.line, self.type = message, source, line, type


class ScriptSyntax(ScriptError, code="script_syntax"):
    """Its code is not valid Python."""


class ScriptTimeout(ScriptError, code="script_timeout"):
    """It ran longer than its time limit."""


class ScriptMemory(ScriptError, code="script_memory"):
    """It needed more memory than its limit."""


class ScriptKilled(ScriptError, code="script_killed"):
    """Its process was killed."""


class ScriptResultInvalid(ScriptError, code="script_result_invalid"):
    """Its result is not JSON, or too large."""


class ScriptUnavailable(ScriptError, code="script_unavailable"):
    """Scripts cannot run on this machine as it is configured."""


SWITCHES = frozenset(
    {
        "capabilities", "core_file", "cpu", "dies_with_parent", "file_size", "files", "memory", "network", "no_new_privileges",
        "not_dumpable", "open_files", "privileges", "processes", "system_calls",
    }
)  # fmt: skip
"""Limits that can be switched off."""


class ScriptLimits(msgspec.Struct, frozen=True):
    """Limits of one script.

    `wall_for` and `cpu_for` are seconds; CPU time is rounded up to whole seconds. `memory_bytes` is address space in addition
    to the interpreter's own. `output_bytes` limits the result as JSON text. `off` names limits to switch off on a machine that
    cannot support them; `ScriptRunner.describe_limits` reports them.
    """

    wall_for: float = 30.0
    cpu_for: float = 30.0
    memory_bytes: int = 256 * 1024 * 1024
    output_bytes: int = PAYLOAD_LIMIT
    off: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        if not (0 < self.wall_for < float("inf") and 0 < self.cpu_for < float("inf")):
            raise InvalidPolicy("wall_for and cpu_for must be more than zero seconds.")
        if self.memory_bytes <= 0 or self.output_bytes <= 0:
            raise InvalidPolicy("memory_bytes and output_bytes must be more than zero.")
        if unknown := sorted(self.off - SWITCHES):
            raise InvalidPolicy(f"There is no limit {', '.join(unknown)} to switch off. There are: {', '.join(sorted(SWITCHES))}.")

    def as_settings(self) -> str:
        """Return the settings of the host process as JSON."""
        limits = {"wall": self.wall_for, "cpu": self.cpu_for, "memory": self.memory_bytes, "off": sorted(self.off)}
        return json.dumps({**limits, "modules": SCRIPT_MODULES, "builtins": SCRIPT_BUILTINS})


_LAUNCH = "import sys; sys.path.append(sys.argv[1]); from sandbox import main; main(int(sys.argv[2]), sys.argv[3])"
_HERE = str(Path(__file__).parent)
_START_FOR = 30.0
_END_FOR = 5.0


class HostGone(Exception):
    """The process ended, or did not answer a request."""


class Ended(msgspec.Struct, frozen=True):
    """The end of a script's process: `status` is its exit status or minus the signal, `cpu_for` its CPU time in seconds."""

    status: int
    cpu_for: float


class ScriptHost:
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
    async def start(cls, python: str, limits: ScriptLimits) -> ScriptHost:
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
            socket.send_fds(self._control, [sandbox.pack({"run": script_id})], [channel.fileno()])
        except OSError as error:  # it is gone, or stuck with a full buffer
            self.give_up(str(error))
        return script_id, future

    async def kill(self, script_id: int, end: asyncio.Future[Ended]) -> None:
        """Kill the script's process if it still runs, and wait for its end."""
        try:
            if not self.gone:
                self._control.send(sandbox.pack({"kill": script_id}))
        except OSError as error:
            self.give_up(str(error))
        await asyncio.wait([end], timeout=GRACE_FOR)
        if not end.done():
            self.give_up("it did not end a script")

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
        for message in sandbox.messages(self._received):
            self._take(message)

    def _take(self, message: dict[str, Any]) -> None:
        if "ready" in message:
            if not self._ready.done():
                self._ready.set_result(message["ready"])
        elif "ended" in message:
            future = self._ends.pop(message["ended"])
            if not future.done():
                future.set_result(Ended(message["status"], message["cpu"]))
        elif "refused" in message:
            future = self._ends.pop(message["refused"])
            if not future.done():
                future.set_exception(OSError(message["why"]))

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


GRACE_FOR = 10.0
"""Seconds that the host process may take to end a script before it is killed itself."""

_READ_FOR = 2.0


async def exchange(host: ScriptHost, request: bytes, limits: ScriptLimits, source: str) -> tuple[Ended, bytes | None]:
    """Run one script until its process ends. The answer is None if it is incomplete.

    A cancellation ends the process. Raises `HostGone`, `ScriptTimeout`, `ScriptResultInvalid` for an answer that is too large, or
    OSError if no process can be started.
    """
    ours, theirs = socket.socketpair()
    with theirs:
        script_id, end = host.run(theirs)
    talk = asyncio.create_task(_talk(ours, request, limits, source))
    try:
        await asyncio.wait([end], timeout=limits.wall_for)
        if not end.done():
            await host.kill(script_id, end)
            if end.result().status == -signal.SIGKILL:
                raise ScriptTimeout(f"The script took longer than {limits.wall_for:g} s and was stopped.", source=source)
        # Everything written before the end can be read now; only an escaped process keeps the channel open.
        await asyncio.wait([talk], timeout=_READ_FOR)
        return end.result(), talk.result() if talk.done() else None
    except asyncio.CancelledError:
        await host.kill(script_id, end)
        raise
    finally:
        talk.cancel()
        await asyncio.gather(talk, return_exceptions=True)


async def _talk(channel: socket.socket, request: bytes, limits: ScriptLimits, source: str) -> bytes | None:
    reader, writer = await asyncio.open_unix_connection(sock=channel, limit=1 << 20)
    try:
        writer.write(sandbox.frame(request))
        size = sandbox.length(await reader.readexactly(sandbox.LENGTH_BYTES))
        if size > limits.output_bytes + _ANSWER_SLACK:
            raise ScriptResultInvalid(f"The result takes more than {limits.output_bytes} bytes.", source=source)
        return await reader.readexactly(size)
    except (OSError, asyncio.IncompleteReadError):  # the process may end before it has read the whole request
        return None
    finally:
        writer.transport.abort()


_PROBLEMS: dict[str, type[ScriptError]] = {cls.code: cls for cls in (ScriptError, ScriptSyntax, ScriptMemory, ScriptResultInvalid)}


def outputs(ended: Ended, answer: bytes | None, limits: ScriptLimits, first_line: int, source: str) -> dict[str, Json]:
    """Return the script's `result`, or raise the matching `ScriptError`."""
    if (failure := _failure(ended, limits, source)) is not None:
        raise failure
    if answer is None:
        raise ScriptKilled("The script's process ended without a result; it may have called exit.", source=source)
    try:
        received = msgspec.json.decode(answer.decode())
    except (UnicodeDecodeError, msgspec.DecodeError, RecursionError) as error:
        raise ScriptResultInvalid(f"The result is not JSON: {error}.", source=source) from None
    match received:
        case {"result": dict(result)}:
            return _storable(result, limits, source)
        case {"problem": str(code), "message": str(message), "type": str() | None as kind, "line": int() | None as line} if (
            code in _PROBLEMS
        ):
            source_line = first_line + line - 1 if line else first_line if code == ScriptSyntax.code else None
            raise _PROBLEMS[code](message, source=source, line=source_line, type=kind)
        case _:
            raise ScriptResultInvalid("The script's process wrote an invalid answer.", source=source)


def _failure(ended: Ended, limits: ScriptLimits, source: str) -> ScriptError | None:
    if ended.status == -signal.SIGXCPU or (ended.status == -signal.SIGKILL and ended.cpu_for >= limits.cpu_for):
        return ScriptTimeout(f"The script used more than {limits.cpu_for:g} s of CPU time and was stopped.", source=source)
    if ended.status == sandbox.EXIT_MEMORY:
        return ScriptMemory(f"The script needs more than {limits.memory_bytes} bytes of memory.", source=source)
    if ended.status < 0:
        return ScriptKilled(f"The script's process was killed by {_signal_name(-ended.status)}.", source=source)
    if ended.status > 0:
        return ScriptKilled(f"The script's process ended with status {ended.status} without a result.", source=source)
    return None


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _storable(result: dict[str, Json], limits: ScriptLimits, source: str) -> dict[str, Json]:
    try:
        encode(result, "result", limits.output_bytes)
    except (InvalidPayload, PayloadTooLarge) as error:
        raise ScriptResultInvalid(str(error), source=source) from None
    return result


_REQUEST_LIMIT = 64 * 1024 * 1024
_ANSWER_SLACK = 64 * 1024
"""Bytes for an error message, or for the braces around a result."""


class ScriptRunner:
    """An async context manager that runs scripts.

    The first script starts a host process, which loads the modules that scripts may import and forks one child per script; it
    is restarted if it ends. At most `concurrency` scripts run concurrently; others wait. Leaving the context ends all
    processes; so does any end of this process.

    The list of built-ins and modules that a script sees is not a security boundary: Python offers ways around it. The limits on
    the process protect the machine; `describe_limits` reports which of them hold here.
    """

    def __init__(self, *, limits: ScriptLimits | None = None, concurrency: int = 8, python: str | None = None) -> None:
        if not 1 <= concurrency <= 64:
            raise InvalidPolicy(f"concurrency must be from 1 to 64, not {concurrency}.")
        self._limits = limits or ScriptLimits()
        self._python = python or sys.executable
        self._slots = asyncio.Semaphore(concurrency)
        self._starting = asyncio.Lock()
        self._host: ScriptHost | None = None
        self._closed = False

    async def __aenter__(self) -> ScriptRunner:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """End all processes; scripts in progress raise `ScriptUnavailable`."""
        self._closed = True
        async with self._starting:
            if self._host is not None:
                await self._host.close()

    async def run(self, code: str, params: dict[str, Json], *, first_line: int = 1, source: str = "<script>") -> dict[str, Json]:
        """Run the script and return its `result`; raises `ScriptError`, with lines counted from `first_line`.

        If the host process is lost, the script runs once more: it cannot have changed anything. A cancellation ends the script.
        Params that are not JSON raise `InvalidPayload`.
        """
        request = {"code": code, "params": params, "source": source, "output": self._limits.output_bytes}
        return await self._outputs(encode(request, "script with its params", _REQUEST_LIMIT), first_line, source)

    async def describe_limits(self) -> dict[str, bool | str]:
        """Return for each limit True if it holds for scripts on this machine, else the reason. Compare with `is True`."""
        notes: dict[str, bool | str] = await self._outputs("{}", 1, "<limits>")
        # These hold by construction, on every platform.
        always = ("wall_clock", "output_size", "environment", "descriptors", "working_directory", "standard_streams")
        return dict(sorted((notes | dict.fromkeys(always, True)).items()))

    async def warm(self) -> int:
        """Start the host process if it is not running, and return its pid."""
        try:
            return (await self._ready_host()).pid
        except (OSError, HostGone) as error:
            raise ScriptUnavailable(f"No process for scripts can be started: {error}.", source="<start>") from None

    async def _outputs(self, request: str, first_line: int, source: str) -> dict[str, Json]:
        async with self._slots:
            for last in (False, True):
                try:
                    host = await self._ready_host()
                except (OSError, HostGone) as error:
                    raise ScriptUnavailable(f"No process for scripts can be started: {error}.", source=source) from None
                try:
                    ended, answer = await exchange(host, request.encode(), self._limits, source)
                    break
                except OSError as error:
                    raise ScriptUnavailable(f"No process can be started for the script: {error}.", source=source) from None
                except HostGone as error:
                    if last and not self._closed:
                        raise ScriptKilled(f"The process that runs scripts was lost twice: {error}.", source=source) from None
        return outputs(ended, answer, self._limits, first_line, source)

    async def _ready_host(self) -> ScriptHost:
        async with self._starting:
            if self._closed:
                raise HostGone("the script runner is closed")
            if self._host is None or self._host.gone:
                if self._host is not None:
                    await self._host.close()
                self._host = await ScriptHost.start(self._python, self._limits)
            return self._host
