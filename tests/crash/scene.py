"""A store, the processes that a test runs on it, and bounded waits for their events."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from tests.fork_server import start
from tests.limits import BOUND

from treadle import Engine, Task
from treadle.kernel.store.queries import TaskFilter
from treadle.model.errors import StoreError
from treadle.model.names import ENGINE_LIST
from treadle.settings import Settings, child_environment

ROOT = Path(__file__).parents[2]
UNSHARE = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")


class Child:
    """A process of the test's own."""

    def __init__(self, url: str, log: Path, arguments: list[str], *, isolated: bool = False) -> None:
        """`isolated`: as pid 1 of a pid namespace of its own, like the only process of a container."""
        self._log = log
        with log.open("wb") as output:
            environment = child_environment(TREADLE_STORE=url)
            fd = output.fileno()
            self._process: Any
            if isolated:
                words = [*UNSHARE, sys.executable, "-m", "tests.crash.child", *arguments]
                self._process = subprocess.Popen(words, cwd=ROOT, env=environment, stdout=fd, stderr=fd)
            else:
                self._process = start("tests.crash.child", arguments, cwd=ROOT, environment=environment, stdout=fd, stderr=fd)
        self.pid = self._process.pid

    @property
    def output(self) -> str:
        return self._log.read_text(errors="replace")

    def events(self, what: str) -> list[dict[str, Any]]:
        """The events of that kind so far."""
        lines = [json.loads(line) for line in self.output.splitlines() if line.startswith("{") and line.endswith("}")]
        return [line for line in lines if line["event"] == what]

    @property
    def exit_code(self) -> int | None:
        return self._process.poll()

    def send(self, number: signal.Signals) -> None:
        if self.exit_code is None:
            os.kill(self.pid, number)

    async def ended(self) -> int:
        """Its exit code, once it has ended."""
        await until(lambda: self.exit_code is not None, self)
        assert self.exit_code is not None
        return self.exit_code

    async def told(self, what: str, count: int = 1) -> dict[str, Any]:
        """The `count`-th event of that kind; it is an error if the process ends without telling it."""
        await until(lambda: len(self.events(what)) >= count or self.exit_code is not None, self)
        assert len(self.events(what)) >= count, f"ended without {what}:\n{self.output}"
        return self.events(what)[count - 1]

    def destroy(self) -> None:
        """Kill it in any state, even while it is stopped."""
        self.send(signal.SIGKILL)
        self._process.wait(BOUND)


class Scene:
    """One store and its processes. `engine` looks from outside and never works."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url, self._folder = url, folder
        self.engine = Engine(url, settings=Settings())
        self.go = folder / "go"
        self._effects = folder / "effects"
        self._children: list[Child] = []

    def start(self, role: str, *arguments: object, isolated: bool = False) -> Child:
        options = [role, "--effects", str(self._effects), "--go", str(self.go), *map(str, arguments)]
        child = Child(self.url, self._folder / f"child-{len(self._children)}.log", options, isolated=isolated)
        self._children.append(child)
        return child

    async def start_worker(self, *arguments: object, isolated: bool = False) -> Child:
        """A worker that has started to claim."""
        child = self.start("worker", *arguments, isolated=isolated)
        await child.told("ready")
        return child

    async def died(self, child: Child) -> None:
        """Wait until the process was killed, then end its leases: they are so long that nothing else ends one."""
        assert await child.ended() == -signal.SIGKILL, child.output
        servers = await self.engine.kernel.store.servers.list_all()
        await self.engine.kernel.store.tasks.expire_leases_of([server.id for server in servers if server.pid == child.pid])

    def effects(self, what: str | None = None) -> list[tuple[str, str, int, int]]:
        """(what, task id, attempt, pid) in the order in which they happened."""
        text = self._effects.read_text() if self._effects.exists() else ""
        parts = [line.split() for line in text.splitlines()]
        return [(p[0], p[1], int(p[2]), int(p[3])) for p in parts if what in (None, p[0])]

    async def finished(self, task_ids: list[str]) -> list[Task]:
        """The tasks, once all are finished; the store may be away meanwhile."""
        found: list[Task] = []

        async def all_there() -> bool:
            nonlocal found
            try:
                found = await self.engine.kernel.store.tasks.find_many(task_ids, ended=True)
            except StoreError:
                return False
            return len(found) == len(set(task_ids))

        await until(all_there, *self._children)
        return found

    async def nothing_is_left(self) -> bool:
        """Whether no task is live any more but the engine's own."""
        try:
            return all(depth.queue.task_list == ENGINE_LIST for depth in await self.engine.kernel.store.tasks.list_depths())
        except StoreError:
            return False

    async def transitions(self, task_id: str) -> list[str]:
        return [transition.transition for transition in await self.engine.kernel.reads.list_transitions(task_id)]

    async def check(self, checked: int) -> None:
        """The log explains every row, and there are so many."""
        report = await self.engine.kernel.verify()
        own = await self.engine.kernel.store.tasks.list_matching(TaskFilter(task_list=ENGINE_LIST), 10)
        assert report.problems == ()
        assert report.checked == checked + len(own)

    def destroy(self) -> None:
        for child in self._children:
            child.destroy()


async def until(holds: Callable[[], bool | Awaitable[bool]], *children: Child, bound: float = BOUND) -> None:
    """Poll until it holds; on a timeout, report the output of the children."""
    try:
        async with asyncio.timeout(bound):
            while True:
                answer = holds()
                if answer if isinstance(answer, bool) else await answer:
                    return
                await asyncio.sleep(0.02)
    except TimeoutError:
        said = "\n".join(f"--- {child.pid} ({child.exit_code})\n{child.output[-3000:]}" for child in children)
        raise AssertionError(f"waited {bound:g} s in vain; the processes said:\n{said}") from None
