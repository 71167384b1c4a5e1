"""Replacements for threads, script processes and files in a simulated process."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from treadle.kernel.watchers.decide import Content, Fetched, Scan
from treadle.model.errors import ScanFailed
from treadle.model.values import Json, decode
from treadle.model.watchers import Item, WatchSource
from treadle.workers.context import Context, RegisteredHandler
from treadle.workers.scripts import ScriptError

if TYPE_CHECKING:
    from treadle.testing.simulation.process import Process


class VirtualExecutor:
    """Implements the executor port: sync code runs on the loop without interruption, at a moment chosen by the seed.

    It cannot wait for the loop, so it does not support `ctx.effect_blocking`.
    """

    def __init__(self, process: Process) -> None:
        self._process = process
        self._abandoned: Counter[str] = Counter()

    async def in_thread(self, handler: RegisteredHandler, arguments: tuple[Any, ...]) -> Any:
        """Run a function as a thread, which cannot be stopped: when canceled, it continues, and its slot stays taken."""
        thread = asyncio.get_running_loop().create_task(self._run(handler, arguments))
        try:
            return await asyncio.shield(thread)
        except asyncio.CancelledError:
            if not thread.done():
                self._abandoned[handler.name] += 1
                thread.add_done_callback(lambda done: self._end(handler.name, done))
            raise

    def _end(self, name: str, thread: asyncio.Task[Any]) -> None:
        self._abandoned[name] -= 1
        if not thread.cancelled():
            thread.exception()  # its caller is gone

    async def in_process(self, handler: RegisteredHandler, context: Context) -> Any:
        """Run a function as a process, which is killed when it is canceled."""
        return await self._run(handler, (decode(context.task.payload), context)[: handler.arguments])

    async def _run(self, handler: RegisteredHandler, arguments: tuple[Any, ...]) -> Any:
        rng = self._process.simulation.rng
        await asyncio.sleep(rng.random() * 0.1)
        await self._process.pass_gate()
        returned = handler.call(*arguments)
        if asyncio.iscoroutine(returned):
            returned = await returned
        await asyncio.sleep(rng.random() * 0.1)
        return returned

    def abandoned(self, names: Iterable[str]) -> int:
        """Return the number of threads without a caller."""
        return sum(self._abandoned[name] for name in names)

    def close(self) -> None:
        """Do nothing."""


class VirtualScripts:
    """Implements the script port: scripts run here without limits, at a moment chosen by the seed."""

    def __init__(self, process: Process) -> None:
        self._process = process

    async def run(self, code: str, params: dict[str, Json], *, first_line: int = 1, source: str = "<script>") -> dict[str, Json]:
        """Return the value that the script left in `result`."""
        await asyncio.sleep(self._process.simulation.rng.random() * 0.1)
        await self._process.pass_gate()
        result: dict[str, Json] = {}
        try:
            exec(compile(code, source, "exec"), {"params": params, "result": result})  # noqa: S102 - scripts are code
        except Exception as error:
            raise ScriptError(str(error), type=type(error).__name__, source=source) from None
        return result

    async def close(self) -> None:
        """Do nothing."""


class NoFiles:
    """Implements the scan port of watchers without files."""

    async def scan(self, source: WatchSource) -> Scan:
        """Return nothing."""
        raise ScanFailed("path_not_found", f"There is no {source.place} in this simulation.")

    async def read(self, source: WatchSource, names: Sequence[str]) -> dict[str, Content]:
        """Return nothing."""
        return dict.fromkeys(names, Content(gone=True))

    async def fetch(self, source: WatchSource, item: Item | None) -> Fetched:
        """Return nothing."""
        return Fetched(gone=True)
