"""From `kill -9` of one of four workers to its task starting in another one, at default settings (a lease of 60 s).

Each kill hits the worker that runs the task; another worker takes its place before the next kill. A worker is killed *alone*, so
that its lease sidecar acts for it, or *with its sidecar*, as the end of a container or an out-of-memory kill of a whole group does;
then the other workers see that both processes are gone. All processes are on one machine.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.benchmark import BOTH, Figures, Found, say
from bench.figures import Aim, Row, by_store, judged
from bench.processes import CHILD_TIMEOUT, Child, child
from treadle import Engine
from treadle.settings import Settings

NAME = "takeover"
TITLE = "Takeover"
STORES = BOTH

ALONE, TOGETHER = "alone", "together"


@dataclass(frozen=True)
class Sizes:
    """`kills` of each way, among so many `workers`."""

    kills: int = 40
    workers: int = 4


SIZES = Sizes()
QUICK = Sizes(kills=2)


class Crew:
    """The workers, and everything that they say."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._stacks: dict[int, tuple[AsyncExitStack, asyncio.Task[None]]] = {}
        self.said: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

    async def hire(self) -> None:
        """Start a worker, and wait until it claims."""
        stack = AsyncExitStack()
        process = await stack.enter_async_context(child("bench.takeover_worker", store=self._url))
        await process.said()
        self._stacks[process.pid] = stack, asyncio.ensure_future(self._hear(process))

    async def _hear(self, process: Child) -> None:
        try:
            while True:
                self.said.put_nowait(await process.said())
        except SystemExit:
            pass  # it was killed

    async def started(self, task_id: str, attempt: int) -> dict[str, Any]:
        """That attempt of the task, once a worker says that it has started."""
        async with asyncio.timeout(CHILD_TIMEOUT):
            while True:
                said = await self.said.get()
                if (said.get("task_id"), said.get("attempt")) == (task_id, attempt):
                    return said

    async def kill(self, pid: int, way: str) -> float:
        """Kill the worker, and with it its sidecar if that is the way; return when."""
        sidecars = sidecars_of(pid) if way == TOGETHER else []
        at = time.time()
        for each in (pid, *sidecars):
            os.kill(each, signal.SIGKILL)
        return at

    async def dismiss(self, pid: int) -> None:
        """Clean up after a worker."""
        stack, hearing = self._stacks.pop(pid)
        hearing.cancel()
        await stack.aclose()

    async def close(self) -> None:
        """Dismiss all workers."""
        for pid in list(self._stacks):
            await self.dismiss(pid)


def sidecars_of(pid: int) -> list[int]:
    """The lease sidecars of the process, which name it in their last argument."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if b"lease_sidecar.process" in b" ".join(words) and str(pid).encode() in words:
            found.append(int(path.parent.name))
    return found


@asynccontextmanager
async def crew_of(url: str, workers: int) -> AsyncIterator[Crew]:
    """So many workers, ended with the block."""
    crew = Crew(url)
    try:
        for _ in range(workers):
            await crew.hire()
        yield crew
    finally:
        await crew.close()


async def measure(url: str, sizes: Sizes) -> Figures:
    """Kill one worker after another."""
    times: dict[str, list[float]] = {ALONE: [], TOGETHER: []}
    async with Engine(url, settings=Settings(), emit=lambda _: None) as engine, crew_of(url, sizes.workers) as crew:
        for number in range(2 * sizes.kills):
            way = (ALONE, TOGETHER)[number % 2]
            task = await engine.enqueue("bench.takeover")
            first = await crew.started(task.id, 1)
            killed_at = await crew.kill(first["pid"], way)
            again = await crew.started(task.id, 2)
            times[way].append(again["at"] - killed_at)
            await crew.dismiss(first["pid"])
            await crew.hire()
        say(f"{2 * sizes.kills} workers were killed")
    return {"kills": sizes.kills, "workers": sizes.workers} | {
        f"{way}_{name}_s": value for way, found in times.items() for name, value in _spread(found).items()
    }


def _spread(found: list[float]) -> dict[str, float]:
    ordered = sorted(found)
    return {"p50": ordered[len(ordered) // 2], "p99": ordered[int(0.99 * len(ordered))], "longest": ordered[-1]}


ROWS = (
    Row("killed alone, median", "alone_p50_s", " s"),
    Row("killed alone, p99", "alone_p99_s", " s"),
    Row("killed alone, longest", "alone_longest_s", " s"),
    Row("killed with its sidecar, median", "together_p50_s", " s"),
    Row("killed with its sidecar, p99", "together_p99_s", " s"),
    Row("killed with its sidecar, longest", "together_longest_s", " s"),
)

AIMS = tuple(
    Aim(f"killed {said}, {name}", f"{way}_{name}_s", " s", at_most=bound)
    for way, said in ((ALONE, "alone"), (TOGETHER, "with its sidecar"))
    for name, bound in (("p50", 1.0), ("p99", 2.0))
)


def show(found: Found) -> str:
    """Figures and targets."""
    each = next(iter(found.values()))
    told = f"{each['kills']} kills of each way, among {each['workers']} workers."
    return f"{told}\n\n{by_store(found, ROWS)}\n\n{judged(found, AIMS)}"
