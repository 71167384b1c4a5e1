"""The command line as its users meet it: real processes in a folder of their own, on a SQLite file in it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

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
        ended = subprocess.run(
            [sys.executable, "-m", "treadle", *arguments],
            cwd=self.folder,
            env=self._environment(environment),
            input=stdin,
            capture_output=True,
            text=True,
            timeout=90,
            preexec_fn=preexec,
        )
        return Ended(ended.returncode, ended.stdout, ended.stderr)

    def json(self, *arguments: str, **environment: str) -> Any:
        """What a command that succeeds says with --json."""
        ended = self(*arguments, "--json", **environment)
        assert ended.code == 0, ended
        return ended.value

    @contextmanager
    def started(self, *arguments: str, **environment: str) -> Iterator[Running]:
        """A command that stays, once it has said that it is there."""
        process = subprocess.Popen(
            [sys.executable, "-m", "treadle", *arguments],
            cwd=self.folder,
            env=self._environment(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            assert process.stdout is not None
            first = process.stdout.readline()
            yield Running(process, first)
        finally:
            process.kill()
            process.communicate()

    def _environment(self, more: dict[str, str]) -> dict[str, str]:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("TREADLE_")}  # noqa: TID251
        return {**inherited, "TREADLE_STORE": self.store, **self.environment, **more}


@dataclass
class Running:
    """A command that runs; `first` is the first line it said."""

    process: subprocess.Popen[str]
    first: str

    def stop(self, sign: signal.Signals = signal.SIGTERM) -> Ended:
        """Send it the signal and wait for its end."""
        self.process.send_signal(sign)
        return self.ended()

    def ended(self) -> Ended:
        """Wait for its end."""
        out, err = self.process.communicate(timeout=60)
        return Ended(self.process.returncode, out, err)
