"""Processes of subjects: started in the right environment, spoken with in lines, and ended with all their children."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

ROOT = Path(__file__).parents[2]


class SubjectFailed(Exception):
    """A subject's process ended, or did not answer in time; the message is what it said last."""


class SubjectProcess:
    """One process of a subject in one role; ended, with its children, when the block is left."""

    def __init__(self, python: Path, subject: str, url: str, role: str, *arguments: object) -> None:
        self._role = f"{subject} {role}"
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        command = [str(python), "-m", f"bench.peers.subjects.{subject}", url, role, *map(str, arguments)]
        self._process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, start_new_session=True
        )
        assert self._process.stdout is not None
        os.set_blocking(self._process.stdout.fileno(), False)
        self._lines: list[bytes] = []
        self._rest = b""

    def __enter__(self) -> SubjectProcess:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._errors):
            if pipe is not None:
                try:
                    pipe.close()
                except BrokenPipeError:
                    pass

    def go(self) -> None:
        """Let it start."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(b"go\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise SubjectFailed(self._said("ended")) from None

    def heard(self, word: str, timeout: float) -> Any:
        """The value of `word` in the next line that has it; other lines are skipped."""
        return self.line(word, timeout)[word]

    def line(self, word: str, timeout: float) -> dict[str, Any]:
        """The next line with that word."""
        until = time.monotonic() + timeout
        while True:
            while self._lines:
                found = _parsed(self._lines.pop(0))
                if word in found:
                    return found
            self._read(until, word)

    def end(self, timeout: float) -> None:
        """Wait until it has done what it was started for."""
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise SubjectFailed(self._said(f"took more than {timeout:g} s")) from None
        if self._process.returncode:
            raise SubjectFailed(self._said(f"failed with exit code {self._process.returncode}"))

    def _read(self, until: float, word: str) -> None:
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            if not selector.select(max(until - time.monotonic(), 0)):
                raise SubjectFailed(self._said(f"did not say {word!r} in time"))
        chunk = self._process.stdout.read()
        if not chunk:
            raise SubjectFailed(self._said(f"ended before it said {word!r}"))
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        self._lines += lines

    def _said(self, what: str) -> str:
        self._errors.seek(0)
        said = self._errors.read().decode(errors="replace").strip().splitlines()
        return f"{self._role} {what}" + (f": {said[-1][:300]}" if said else "")


def _parsed(line: bytes) -> dict[str, Any]:
    """A line of the protocol; engines may print other things."""
    try:
        found = json.loads(line)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


@contextmanager
def interruptible() -> Iterator[None]:
    """SIGTERM leaves all blocks in order, as Ctrl-C does."""

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
