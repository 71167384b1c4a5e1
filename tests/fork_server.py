"""Processes for tests that start fast: real ones, forked from a parent that has imported everything already.

Starting Python and importing Treadle takes longer than most commands do. So each process that runs tests starts one that imports
everything (`python -m tests.fork_server FD`) and forks a child for each request: a process with its own folder, environment,
standard streams and default signals, in which the module runs as `python -m` would.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import importlib
import json
import os
import pkgutil
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import IO, NoReturn

import treadle
from treadle.model.errors import MissingDependency

ROOT = Path(__file__).parents[1]
Request = tuple[str, list[str], str, dict[str, str]]
"""Module, arguments, folder and environment of a child."""

_REQUEST_LIMIT = 1 << 20

_IMPORTED = (
    "tests.crash.child",
    "asyncio",
    "importlib.metadata",
    "jsonschema",
    "click.shell_completion",
    *(f"rich.{module}" for module in ("console", "live", "markdown", "progress", "table")),
)
"""Modules that children need besides Treadle itself; third-party modules that are not installed are left out."""

_RARE = (
    "treadle.__main__",
    "treadle.agents.mongodump",
    "treadle.interfaces.cli.commands.top_screen",
    "treadle.integrations",
    "treadle.interfaces.lsp.server",
    "treadle.engine.tracing",
    "treadle.testing.pytest_plugin",
)
"""Modules that need large packages and that few children need. The larger a process, the longer it takes to fork."""


class ForkedProcess:
    """A process that was forked for a test; as much of `subprocess.Popen` as tests use."""

    def __init__(self, pid: int, status: socket.socket, stdout: IO[str] | None, stderr: IO[str] | None) -> None:
        self.pid = pid
        self.stdout, self.stderr = stdout, stderr
        self.returncode: int | None = None
        self._status = status

    def poll(self) -> int | None:
        """Its exit code, or None while it runs; minus the signal that ended it."""
        with contextlib.suppress(TimeoutError, subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code, once it has ended."""
        if self.returncode is None:
            if not select.select([self._status], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0)
            self.returncode = int(self._status.recv(64) or -signal.SIGKILL)
            self._status.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class ForkServer:
    """The process that has imported everything, as this one sees it."""

    def __init__(self) -> None:
        self._line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._lock = threading.Lock()
        with theirs:
            command = [sys.executable, "-m", "tests.fork_server", str(theirs.fileno())]
            self._process = subprocess.Popen(command, cwd=ROOT, pass_fds=[theirs.fileno()], start_new_session=True)
        atexit.register(self.close)

    def fork(self, request: Request, streams: list[int]) -> tuple[int, socket.socket]:
        """Fork a child that runs the module; return its pid, and the socket that receives its exit code."""
        ours, theirs = socket.socketpair()
        with self._lock, theirs:
            socket.send_fds(self._line, [json.dumps(request).encode()], [*streams, theirs.fileno()])
            pid = self._line.recv(64)
        assert pid, "the fork server of the tests has ended"
        return int(pid), ours

    def close(self) -> None:
        """End the children, and wait until they are gone."""
        self._line.close()
        self._process.wait()


@functools.cache
def fork_server() -> ForkServer:
    return ForkServer()


def start(
    module: str,
    arguments: list[str],
    *,
    cwd: Path,
    environment: dict[str, str],
    stdin: int | None = None,
    stdout: int | None = None,
    stderr: int | None = None,
) -> ForkedProcess:
    """Start a process that runs `python -m module`; the default of stdin is empty, of stdout and stderr a pipe to read from."""
    pipes: list[IO[str] | None] = []
    with contextlib.ExitStack() as stack:
        streams = [stack.enter_context(Path(os.devnull).open()).fileno() if stdin is None else stdin]
        for stream in (stdout, stderr):
            if stream is None:
                read, stream = os.pipe()
                stack.callback(os.close, stream)
                pipes.append(os.fdopen(read, encoding="utf-8"))
            else:
                pipes.append(None)
            streams.append(stream)
        pid, status = fork_server().fork((module, arguments, str(cwd), environment), streams)
    return ForkedProcess(pid, status, *pipes)


def serve(line: socket.socket) -> None:
    """Run the fork server: import everything, then fork a child for each request, until the process of the tests has ended."""
    _import_everything()
    read, write = os.pipe()
    os.set_blocking(read, False)
    os.set_blocking(write, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(write)
    children: dict[int, socket.socket] = {}
    while True:
        ready = select.select([line, read], [], [])[0]
        if read in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(read, 4096)
            _report_ended(children)
        if line in ready:
            request, fds, _, _ = socket.recv_fds(line, _REQUEST_LIMIT, 4)
            if not request:
                break
            pid = os.fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                _run_child(request, fds, [line.fileno(), read, write, *(status.fileno() for status in children.values())])
            for fd in fds[:3]:
                os.close(fd)
            children[pid] = socket.socket(fileno=fds[3])
            with contextlib.suppress(OSError):  # the tests have ended meanwhile
                line.send(str(pid).encode())
    for pid in children:
        os.kill(pid, signal.SIGKILL)
    for pid in children:
        os.waitpid(pid, 0)


def _modules(folder: Path, prefix: str) -> Iterator[str]:
    """Yield the names of all modules in the folder that children are likely to need."""
    for module in pkgutil.iter_modules([str(folder)], prefix):
        if not module.name.startswith(_RARE):
            yield module.name
            if module.ispkg:
                yield from _modules(folder / module.name.rpartition(".")[2], f"{module.name}.")


def _import_everything() -> None:
    """Do once what every child would do first: import, and put the command line and the server's routes together."""
    for name in (*_modules(Path(treadle.__path__[0]), "treadle."), *_IMPORTED):
        with contextlib.suppress(ModuleNotFoundError, MissingDependency):  # extras that are not installed
            importlib.import_module(name)
    importlib.import_module("treadle.interfaces.cli.app").load_all()
    with contextlib.suppress(ModuleNotFoundError, MissingDependency):
        importlib.import_module("treadle.interfaces.http.app").api_routes()
    gc.collect()
    gc.freeze()  # no child looks through all that for garbage


def _report_ended(children: dict[int, socket.socket]) -> None:
    """Send the exit codes of children that have ended."""
    for pid in list(children):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            with contextlib.suppress(OSError):
                children[pid].send(str(os.waitstatus_to_exitcode(status)).encode())
            children.pop(pid).close()


def _run_child(request: bytes, fds: list[int], others: list[int]) -> NoReturn:
    """Run the module in the child as if it had just been started, and end with its exit code."""
    code = 1
    try:
        module, arguments, cwd, environment = json.loads(request)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for number, fd in enumerate(fds[:3]):
            os.dup2(fd, number)
        for fd in (*fds, *others):
            os.close(fd)
        sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
        sys.stderr = open(2, "w", encoding="utf-8", closefd=False, buffering=1)  # noqa: SIM115
        os.chdir(cwd)
        os.environ.clear()  # noqa: TID251
        os.environ.update(environment)  # noqa: TID251
        sys.argv = [module, *arguments]
        sys.path[0] = cwd
        code = _run(module)
        sys.stdout.flush()
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(BaseException):
            sys.stderr.flush()
        os._exit(code & 0xFF)


def _run(module: str) -> int:
    """Run the module and return its exit code as the Python launcher would."""
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        return 0
    except SystemExit as ended:
        if ended.code is None or isinstance(ended.code, int):
            return ended.code or 0
        sys.stderr.write(f"{ended.code}\n")
        return 1
    finally:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
