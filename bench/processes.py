"""Processes that a benchmark starts: each says JSON objects, one to a line, and is told words, one to a line."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from treadle.settings import child_environment, load_settings

CHILD_TIMEOUT = 600.0
"""Seconds until a process that says nothing is taken for broken."""


class Child:
    """The process from outside."""

    def __init__(self, module: str, process: asyncio.subprocess.Process) -> None:
        self._module, self._process = module, process
        self.pid = process.pid

    async def said(self) -> Any:
        """The next object that it says; a process that ends instead, or is silent for long, ends the benchmark."""
        assert self._process.stdout is not None
        async with asyncio.timeout(CHILD_TIMEOUT):
            line = await self._process.stdout.readline()
        if not line:
            raise SystemExit(f"the process {self._module} ended with {await self._process.wait()} before it had said all")
        return json.loads(line)

    async def tell(self, word: str) -> None:
        """Send the word that the child's next call of `told` returns."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{word}\n".encode())
        await self._process.stdin.drain()


@asynccontextmanager
async def child(module: str, *arguments: str, store: str, **environment: str) -> AsyncIterator[Child]:
    """`python -m module arguments`, on that store; ended with the block."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", module, *arguments,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        env=child_environment(TREADLE_STORE=store, **environment),
    )  # fmt: skip
    try:
        yield Child(module, process)
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


# --- and from inside ---

_words: SimpleQueue[str] = SimpleQueue()


def own_store() -> str:
    """The store that this process was started on."""
    return load_settings().store


def tell_parent(**said: Any) -> None:
    """Say one object."""
    print(json.dumps(said), flush=True)


async def told() -> str:
    """The next word from outside."""
    return await asyncio.to_thread(_words.get)


def listen() -> None:
    """Take in what is told from now on; when there is nobody outside any more, this process ends at once."""

    def hear() -> None:
        for line in sys.stdin:
            _words.put(line.strip())
        os._exit(0)

    threading.Thread(target=hear, daemon=True).start()


def run_lasting(running: Coroutine[Any, Any, None]) -> None:
    """Run it on the event loop that `treadle worker` has."""
    from treadle.interfaces.cli.session import lasting_loop

    with asyncio.Runner(loop_factory=lasting_loop()) as runner:
        runner.run(running)


def stop_at_sigterm() -> None:
    """Let SIGTERM unwind this process as Ctrl-C does, so that what it started ends too."""

    def stop(*_: object) -> None:
        raise SystemExit(f"{sys.argv[0]} was told to stop")

    signal.signal(signal.SIGTERM, stop)


def rss_mb(pid: int | None = None) -> float:
    """The resident memory of this process, or of another one, in MB."""
    status = Path(f"/proc/{pid or 'self'}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) / 1024
