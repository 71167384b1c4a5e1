"""Processes for tests that start fast: real ones, forked from a parent that has imported everything already.

Starting Python and importing Treadle costs more than most commands do. So one process of a run (`python -m tests.fork_server
FD`) imports it, then forks a parent for each process that runs tests, and that a child for each request: a process of its own with
its own folder, environment, standard streams and default signals, in which the module runs as `python -m` would.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import pkgutil
import runpy
import secrets
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import IO, NoReturn

import treadle
from treadle.model.errors import MissingDependency

ROOT = Path(__file__).parents[1]
ADDRESS = "TESTS_FORK_SERVER"
"""The variable with the address of the process that has imported everything."""

_REQUEST_LIMIT = 1 << 20

_IMPORTED = (
    "tests.crash.child",
    "asyncio",
    "importlib.metadata",
    "jsonschema",
    "rich.console",
    "rich.live",
    "rich.markdown",
    "rich.progress",
    "rich.table",
    "click.shell_completion",
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
            said = self._status.recv(64)
            self._status.close()
            self.returncode = int(said) if said else -signal.SIGKILL
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _ignore_interrupts() -> None:
    """Ctrl-C reaches all processes of a terminal: the parent of the children ends after them, when its line is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def begin() -> str:
    """Start the process that imports, which ends with this one; its address."""
    name = f"treadle-fork-server-{secrets.token_hex(8)}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(f"\0{name}")
        listener.listen()
        command = [sys.executable, "-m", "tests.fork_server", str(listener.fileno())]
        process = subprocess.Popen(
            command, cwd=ROOT, pass_fds=[listener.fileno()], stdin=subprocess.PIPE, preexec_fn=_ignore_interrupts
        )
    atexit.register(process.communicate)
    return name


def address() -> str:
    """The address of the process that imports, which is started if there is none yet."""
    if ADDRESS not in os.environ:  # noqa: TID251
        os.environ[ADDRESS] = begin()  # noqa: TID251
    return os.environ[ADDRESS]  # noqa: TID251


def command_of(module: str, *arguments: str) -> list[str]:
    """The command that runs the module in a forked process, for those who start it themselves and send it no signals."""
    return [sys.executable, "-I", "-S", str(Path(__file__).with_name("forked_command.py")), address(), module, *arguments]


class ForkServer:
    """The parent, as those see it who want children."""

    def __init__(self) -> None:
        self._line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._line.connect(f"\0{address()}")
        self._lock = threading.Lock()
        atexit.register(self.close)

    def fork(
        self,
        module: str,
        arguments: list[str],
        cwd: Path,
        environment: dict[str, str],
        streams: list[int],
        *,
        interruptible: bool,
    ) -> tuple[int, socket.socket]:
        """Fork a child that runs the module; its pid, and where its exit code will be told."""
        wish = json.dumps([module, arguments, str(cwd), environment, interruptible]).encode()
        assert len(wish) < _REQUEST_LIMIT
        ours, theirs = socket.socketpair()
        with self._lock, theirs:
            socket.send_fds(self._line, [wish], [*streams, theirs.fileno()])
            said = self._line.recv(64)
        assert said, "the parent of the tests' processes is gone"
        return int(said), ours

    def close(self) -> None:
        """End the children, and wait until they are gone."""
        self._line.shutdown(socket.SHUT_WR)
        self._line.recv(1)
        self._line.close()


_fork_server: ForkServer | None = None


def start(
    module: str,
    arguments: list[str],
    *,
    cwd: Path,
    environment: dict[str, str],
    stdin: int | None = None,
    stdout: int | None = None,
    stderr: int | None = None,
    interruptible: bool = True,
) -> ForkedProcess:
    """A process that runs `python -m module`; streams that are not given are pipes to read from, stdin is empty."""
    global _fork_server
    if _fork_server is None:
        _fork_server = ForkServer()
    opened: list[int] = []
    out = err = None
    if stdin is None:
        stdin = os.open(os.devnull, os.O_RDONLY)
        opened.append(stdin)
    if stdout is None:
        read, stdout = os.pipe()
        out = os.fdopen(read, encoding="utf-8")
        opened.append(stdout)
    if stderr is None:
        read, stderr = os.pipe()
        err = os.fdopen(read, encoding="utf-8")
        opened.append(stderr)
    try:
        streams = [stdin, stdout, stderr]
        pid, status = _fork_server.fork(module, arguments, cwd, environment, streams, interruptible=interruptible)
    finally:
        for each in opened:
            os.close(each)
    return ForkedProcess(pid, status, out, err)


# --- in the process that imports, and in the parents ---


def serve(listener: socket.socket) -> None:
    """Import everything when the first one asks; fork a parent for each, until the run has ended."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    learned = False
    while sys.stdin not in select.select([listener, sys.stdin], [], [])[0]:
        line, _ = listener.accept()
        if not learned:
            _learn()
            learned = True
        if os.fork() == 0:
            listener.close()
            with Path(os.devnull).open() as nothing:
                os.dup2(nothing.fileno(), 0)
            _be_parent(line)
            os._exit(0)
        line.close()


def _be_parent(line: socket.socket) -> None:
    """Fork children until nobody wants any more."""
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
            _reap(children)
        if line in ready:
            wish, fds, _, _ = socket.recv_fds(line, _REQUEST_LIMIT, 4)
            if not wish:
                break
            pid = os.fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                _live(wish, fds, [line.fileno(), read, write, *(status.fileno() for status in children.values())])
            for fd in fds[:3]:
                os.close(fd)
            children[pid] = socket.socket(fileno=fds[3])
            line.send(str(pid).encode())
    for pid in children:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    for _ in range(500):
        _reap(children)
        if not children:
            break
        time.sleep(0.01)


def _modules(folder: Path, prefix: str) -> Iterator[str]:
    """The names of all modules in the folder that children are likely to need."""
    for module in pkgutil.iter_modules([str(folder)], prefix):
        if not module.name.startswith(_RARE):
            yield module.name
            if module.ispkg:
                yield from _modules(folder / module.name.rpartition(".")[2], f"{module.name}.")


def _learn() -> None:
    """Do once what every child would do first: import, and put the command line and the server's routes together."""
    for name in (*_modules(Path(treadle.__path__[0]), "treadle."), *_IMPORTED):
        with contextlib.suppress(ModuleNotFoundError, MissingDependency):  # extras that are not installed
            importlib.import_module(name)
    importlib.import_module("treadle.interfaces.cli.app").load_all()
    with contextlib.suppress(ModuleNotFoundError, MissingDependency):
        importlib.import_module("treadle.interfaces.http.app").api_routes()
    gc.collect()
    gc.freeze()  # no child looks through all that for garbage


def _reap(children: dict[int, socket.socket]) -> None:
    """Tell of those that have ended."""
    for pid in list(children):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            with contextlib.suppress(OSError):
                children[pid].send(str(os.waitstatus_to_exitcode(status)).encode())
            children.pop(pid).close()


def _live(wish: bytes, fds: list[int], others: list[int]) -> NoReturn:
    """In the child: be as if just started, run the module, and end with its code."""
    code = 1
    try:
        module, arguments, cwd, environment, interruptible = json.loads(wish)
        for number in (signal.SIGCHLD, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler if interruptible else signal.SIG_IGN)
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
