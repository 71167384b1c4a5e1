"""The command line as its users meet it: real processes in a folder of their own, on a SQLite file in it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any

from tests.fork_server import ForkedProcess, start
from tests.limits import BOUND

HANDLERS = '''
import os
import time
from pathlib import Path

from treadle import Engine, NonRetryable

engine = Engine()


@engine.handler("greet")
async def greet(payload, ctx):
    ctx.log("a line with [bold]markup[/bold] and \\x1b[31mcontrol")
    return {"hello": payload.get("name", "nobody")}


@engine.handler("boom")
async def boom(payload):
    raise NonRetryable("no [bold]good[/bold]", "spoiled")


@engine.handler("flaky", retry=1)
async def flaky(payload, ctx):
    if ctx.attempt == 1:
        raise RuntimeError("not yet")
    return {"attempt": ctx.attempt}


@engine.handler("isolated", isolation="process")
def isolated(payload):
    return {"pid": os.getpid()}


@engine.handler("chain")
async def chain(payload):
    return {"next": (await engine.enqueue("greet", {"name": "chain"})).id}


@engine.handler("gate")
def gate(payload, ctx):
    """Says that it runs by making one file, and ends when there is another."""
    Path("started").touch()
    while not Path("open").exists() and not ctx.cancelled:
        time.sleep(0.01)
    return {"cancelled": ctx.cancelled}
'''


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def value(self) -> Any:
        """The one JSON document on stdout."""
        return json.loads(self.out)

    @property
    def error(self) -> dict[str, str]:
        """The error object, which is the last line on stderr."""
        return json.loads(self.err.splitlines()[-1])["error"]


@dataclass
class Treadle:
    """The command, run in `folder`."""

    folder: Path
    store: str = "sqlite:///treadle.db"
    environment: dict[str, str] = field(default_factory=dict)

    def __call__(self, *arguments: str, stdin: str = "", preexec: Callable[[], None] | None = None, **environment: str) -> Ended:
        """Run it to its end."""
        if preexec is None:
            return self._run(arguments, stdin, self._environment(environment))
        ended = subprocess.run(
            [sys.executable, "-m", "treadle", *arguments],
            cwd=self.folder,
            env=self._environment(environment),
            input=stdin,
            capture_output=True,
            text=True,
            timeout=BOUND,
            preexec_fn=preexec,
        )
        return Ended(ended.returncode, ended.stdout, ended.stderr)

    def _run(self, arguments: tuple[str, ...], stdin: str, environment: dict[str, str]) -> Ended:
        with TemporaryFile() as given, TemporaryFile() as out, TemporaryFile() as err:
            given.write(stdin.encode())
            given.seek(0)
            streams = {"stdin": given.fileno(), "stdout": out.fileno(), "stderr": err.fileno()}
            process = start("treadle", list(arguments), cwd=self.folder, environment=environment, **streams)
            try:
                code = process.wait(BOUND)
            finally:
                process.kill()
            out.seek(0)
            err.seek(0)
            return Ended(code, out.read().decode(), err.read().decode())

    def json(self, *arguments: str, **environment: str) -> Any:
        """The JSON output of a command that succeeds with --json."""
        ended = self(*arguments, "--json", **environment)
        assert ended.code == 0, ended
        return ended.value

    @contextmanager
    def started(self, *arguments: str, **environment: str) -> Iterator[Running]:
        """A command that stays, once it has said that it is there."""
        process = start("treadle", list(arguments), cwd=self.folder, environment=self._environment(environment))
        running = Running(process, Lines(process.stdout), Lines(process.stderr))
        try:
            running.first = running.out.wait_for("")
            yield running
        finally:
            process.kill()
            process.wait()
            running.out.close()
            running.err.close()

    def _environment(self, more: dict[str, str]) -> dict[str, str]:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("TREADLE_")}  # noqa: TID251
        return {**inherited, "TREADLE_STORE": self.store, "TREADLE_HTTP_PORT": "0", **self.environment, **more}


class Lines:
    """The output of a process, read continuously by a thread, so that no output waits in a buffer or fills a pipe."""

    def __init__(self, pipe: IO[str] | None) -> None:
        assert pipe is not None
        self._pipe = pipe
        self._lines: list[str] = []
        self._ended = False
        self._change = threading.Condition()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        for line in self._pipe:
            with self._change:
                self._lines.append(line)
                self._change.notify_all()
        with self._change:
            self._ended = True
            self._change.notify_all()

    def wait_for(self, word: str) -> str:
        """The first line with that in it, once it is there; empty if the process ends without one."""
        with self._change:
            self._change.wait_for(lambda: self._ended or any(word in line for line in self._lines))
            return next((line for line in self._lines if word in line), "")

    def rest(self, first: int) -> str:
        """All from that line on, once the process has ended."""
        self._reader.join()
        return "".join(self._lines[first:])

    def close(self) -> None:
        self._reader.join()
        self._pipe.close()


@dataclass
class Running:
    """A command that runs; `first` is the first line it said."""

    process: ForkedProcess
    out: Lines
    err: Lines
    first: str = ""

    def stop(self, sign: signal.Signals = signal.SIGTERM) -> Ended:
        """Send it the signal and wait for its end."""
        self.process.send_signal(sign)
        return self.ended()

    def ended(self) -> Ended:
        """Wait for its end; `out` is what it said after its first line."""
        code = self.process.wait(timeout=BOUND)
        return Ended(code, self.out.rest(1), self.err.rest(0))
