"""Faults, drawn from a seed: processes are killed or stopped, the database stops, connections are cut."""

from __future__ import annotations

import asyncio
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import apsw
import asyncpg
from tests.chaos.stage import Stage, Worker

from treadle import Engine
from treadle.kernel.store.process import SystemClock
from treadle.kernel.takeover import declare_dead
from treadle.model.errors import StoreError
from treadle.model.tasks import PROCESS, SESSION
from treadle.settings import Settings

RESTARTED, LEFT, STOPPED = "killed, and started again", "killed, and left to its lease", "stopped for over a lease"
CLIENT, ALL = "client killed", "all workers killed at once"
FAST, IMMEDIATE, CUT = "database stopped (fast)", "database stopped (immediate)", "connections cut"
LOCKED = "file locked by another program"
PRESUMED = "taken for dead while alive"
LOST, HUNG = "answers of the database lost", "connections hung for over a lease"

OFTEN = {
    RESTARTED: 34,
    LEFT: 14,
    STOPPED: 18,
    ALL: 3,
    CLIENT: 7,
    FAST: 4,
    IMMEDIATE: 4,
    CUT: 10,
    LOST: 8,
    HUNG: 4,
    LOCKED: 8,
    PRESUMED: 6,
}
"""How often each happens, of a hundred."""

AT_WORK = 0.9
"""How often who is hit is at work, and not still about to start."""

DATABASE = (FAST, IMMEDIATE, CUT, LOST, HUNG)
"""Faults that need a database server."""

CUT_SOME = """
select pg_terminate_backend(pid)
from pg_stat_activity
where datname = current_database() and pid <> pg_backend_pid() and backend_type = 'client backend' and random() < $1
"""


@dataclass(frozen=True, slots=True)
class Blow:
    """Something that was done to a worker, at that instant (in milliseconds); `until_at` is when it went on, if it did."""

    way: str
    at: int
    diary: Path
    until_at: int | None = None


class Storms:
    """The faults of one stage."""

    def __init__(self, stage: Stage) -> None:
        self._stage, self._rng, self._clock = stage, stage.rng, SystemClock()
        self.blows: list[Blow] = []
        self.counts: Counter[str] = Counter()
        self._running: set[asyncio.Task[None]] = set()
        self._database = asyncio.Lock()
        self._acts: dict[str, Callable[[], Awaitable[None]]] = {
            RESTARTED: self._restart,
            LEFT: self._leave,
            STOPPED: self._stand_still,
            ALL: self._kill_all,
            CLIENT: self._kill_client,
            FAST: lambda: self._outage(FAST, "fast"),
            IMMEDIATE: lambda: self._outage(IMMEDIATE, "immediate"),
            CUT: self._cut,
            LOST: lambda: self._tell_proxy(LOST, signal.SIGUSR1),
            LOCKED: self._lock,
            HUNG: lambda: self._tell_proxy(HUNG, signal.SIGUSR2),
            PRESUMED: self._presume,
        }
        self._script = list(stage.plan.script)
        self._ways = [way for way in OFTEN if way not in ((LOCKED,) if stage.server is not None else DATABASE)]

    async def blow(self) -> None:
        """One more, beside those that still go on: the next of the script, or else any."""
        if self._script:
            way = self._script.pop(0)
        else:
            (way,) = self._rng.choices(self._ways, [OFTEN[way] for way in self._ways])
        task = asyncio.ensure_future(self._acts[way]())
        self._running.add(task)
        await asyncio.sleep(0)
        for ended in [each for each in self._running if each.done()]:
            self._running.discard(ended)
            ended.result()

    async def calm(self) -> None:
        """Nothing goes wrong any more, and everything that was ended runs again."""
        await asyncio.gather(*self._running)
        self._running.clear()

    def _free(self) -> Worker | None:
        """Mostly one that is at work; now and then one that has just been started."""
        free = [worker for worker in self._stage.workers if not worker.busy]
        if self._rng.random() < AT_WORK:
            free = [worker for worker in free if worker.process.events("ready")]
        return self._rng.choice(free) if free else None

    async def kill(self, worker: Worker, way: str) -> None:
        """Kill a worker."""
        self.counts[way] += 1
        worker.busy = True
        worker.process.send(signal.SIGKILL)
        self.blows.append(Blow(way, self._clock.now(), worker.diary))
        await worker.process.ended()

    async def start(self, worker: Worker, name: str) -> None:
        """Start another process in its place."""
        self._stage.start_again(worker, name)
        worker.busy = False

    async def _restart(self) -> None:
        if (worker := self._free()) is not None:
            await self.kill(worker, RESTARTED)
            await self.start(worker, worker.name)

    async def _leave(self) -> None:
        """Nobody of its name comes back, so that only the lease tells."""
        if (worker := self._free()) is not None:
            await self.kill(worker, LEFT)
            await asyncio.sleep(self._rng.uniform(0.1, 1.5) * self._stage.plan.lease)  # the lease ends meanwhile, or does not
            await self.start(worker, f"worker{worker.number}-{len(self._stage.started)}")

    async def _stand_still(self) -> None:
        """Stop a process for longer than its lease; when it continues, it does not know that others have taken over its work."""
        if (worker := self._free()) is None:
            return
        self.counts[STOPPED] += 1
        worker.busy = True
        worker.process.send(signal.SIGSTOP)
        at = self._clock.now()
        try:
            await asyncio.sleep(self._rng.uniform(1.2, 2) * self._stage.plan.lease)  # the length of the fault
        finally:
            worker.process.send(signal.SIGCONT)
            self.blows.append(Blow(STOPPED, at, worker.diary, self._clock.now()))
        worker.busy = False

    async def _presume(self) -> None:
        """Free the work of a live worker, as another one does that takes it for dead."""
        engine = Engine(self._stage.url, settings=Settings(), emit=lambda event: None)
        with suppress(StoreError):
            async with engine:
                live = await engine.kernel.store.servers.list_sightings()
                if live:
                    self.counts[PRESUMED] += 1
                    await declare_dead(
                        engine.kernel.store, {self._rng.choice(live).server_id: self._rng.choice((PROCESS, SESSION))}
                    )

    async def _kill_all(self) -> None:
        self.counts[ALL] += 1
        free = [worker for worker in self._stage.workers if not worker.busy]
        await asyncio.gather(*(self.kill(worker, RESTARTED) for worker in free))
        for worker in free:
            await self.start(worker, worker.name)

    async def _kill_client(self) -> None:
        client = self._stage.client
        if client is not None and client.exit_code is None:
            self.counts[CLIENT] += 1
            client.send(signal.SIGKILL)
            await client.ended()
            self._stage.start_client()

    async def _outage(self, way: str, mode: str) -> None:
        server = self._stage.server
        assert server is not None
        async with self._database:
            self.counts[way] += 1
            await asyncio.to_thread(server.stop, mode)
            await asyncio.sleep(self._rng.uniform(0, 1.2) * self._stage.plan.lease)  # the length of the fault
            await asyncio.to_thread(server.start)

    async def _cut(self) -> None:
        async with self._database:
            self.counts[CUT] += 1
            line = await asyncpg.connect(self._stage.url, timeout=20)
            try:
                await line.execute(CUT_SOME, self._rng.choice((0.2, 0.5, 1.0)))
            finally:
                await line.close(timeout=5)

    async def _lock(self) -> None:
        async with self._database:
            self.counts[LOCKED] += 1
            for_seconds = self._rng.uniform(0.2, 1.5) * self._stage.plan.lease
            await asyncio.to_thread(hold_lock, self._stage.url.removeprefix("sqlite:///"), for_seconds)

    async def _tell_proxy(self, way: str, number: signal.Signals) -> None:
        """The client and one worker are on the other side of it."""
        assert self._stage.proxy is not None
        self.counts[way] += 1
        self._stage.proxy.send(number)


def hold_lock(path: str, seconds: float) -> None:
    """Keep everybody else from writing into the file."""
    file = apsw.Connection(path)
    try:
        file.set_busy_timeout(30_000)
        file.execute("begin immediate")
        time.sleep(seconds)  # the length of the fault
        file.execute("rollback")
    finally:
        file.close()
