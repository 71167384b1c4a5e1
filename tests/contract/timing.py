"""Schedules and watchers on a store with a manual clock: the services, and single steps of a worker."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from tests.contract.databases import StoreClock

from treadle.kernel.core import Core
from treadle.kernel.functions.operations import FunctionRuns
from treadle.kernel.functions.service import Functions
from treadle.kernel.queue.service import Queue
from treadle.kernel.runs.advancer import Advancer
from treadle.kernel.runs.flows import Flows
from treadle.kernel.runs.service import Runs
from treadle.kernel.schedules.fire import Firer
from treadle.kernel.schedules.service import Schedules
from treadle.kernel.store.committer import Committer
from treadle.kernel.store.ports import Store
from treadle.kernel.store.process import SystemClock, SystemIds
from treadle.kernel.store.queries import TaskFilter
from treadle.kernel.store.units import Finish, Seen, Unit, UnitAnswer
from treadle.kernel.store.value_store import ValueStore
from treadle.kernel.store.verify import verify
from treadle.kernel.telemetry.events import TelemetryEvent
from treadle.kernel.triggers import Starters
from treadle.kernel.watchers.scan import SourceReader, WatcherScanner
from treadle.kernel.watchers.service import Watchers
from treadle.model.names import HANDLER, SCHEDULE, WATCHER
from treadle.model.states import TaskState
from treadle.model.tasks import Task
from treadle.model.values import decode
from treadle.testing import ManualClock
from treadle.workers.context import Context, RegisteredHandler
from treadle.workers.scanner import Scanner

SECOND, MINUTE, HOUR, DAY = 1000, 60_000, 3_600_000, 86_400_000


class InThisThread:
    """An executor for tests that runs everything in the calling thread."""

    async def in_thread(self, handler: RegisteredHandler, arguments: tuple[Any, ...]) -> Any:
        return handler.call(*arguments)

    async def in_process(self, handler: RegisteredHandler, context: Context) -> Any:
        raise NotImplementedError

    def abandoned(self, names: Iterable[str]) -> int:
        return 0


class Timing:
    """One process: its services on the store, under a worker's name of its own."""

    def __init__(self, store: Store, clock: StoreClock, owner_id: str | None = None) -> None:
        ids, waiting = SystemIds(), ManualClock()
        self.store, self.clock = store, clock
        self.owner_id = owner_id or ids.new_id()
        self.committer = Committer(store, waiting)
        self.events: list[TelemetryEvent] = []
        core = self.core = Core(store, self.committer, ValueStore(store, None), ids, waiting, self.events.append)
        self.queue = Queue(core)
        self.flows = Flows(core)
        self.runs = Runs(core, Advancer(core, self.flows), self.flows, FunctionRuns(core, Functions(core, lambda _: None)))
        self.starters = Starters(core, self.queue, lambda: self.runs, lambda: None)
        self.schedules = Schedules(core, self.starters)
        self.firer = Firer(core, self.schedules)
        self.watchers = Watchers(core, self.starters)
        self.looks: SourceReader = Scanner(InThisThread(), SystemClock())

    # time

    def in_(self, ms: int) -> datetime:
        """So much after the store's time, which stands still."""
        return datetime.fromtimestamp(self.clock.now() / 1000, UTC) + timedelta(milliseconds=ms)

    async def pass_(self, ms: int) -> None:
        await self.clock.advance(ms)

    # work

    async def claim(self, kind: str, lease_for: int = MINUTE) -> list[Task]:
        """Wake due tasks and claim those of that kind."""
        await self.store.tasks.wake(1000)
        queues = [queue_id for queue_id, queue in (await self.store.tasks.list_queues()).items() if queue.kind == kind]
        found: list[Task] = []
        while queues and (page := await self.store.tasks.claim(queues, self.owner_id, lease_for, 100)):
            found += page
        return found

    async def turn(self) -> list[UnitAnswer]:
        """Fire the due schedules, each once."""
        return [await self.firer.run(task) for task in await self.claim(SCHEDULE)]

    @property
    def looker(self) -> WatcherScanner:
        return WatcherScanner(self.core, self.watchers, self.looks)

    async def look(self) -> list[UnitAnswer]:
        """Look for all watchers that are due, each once."""
        return [await self.looker.run(task) for task in await self.claim(WATCHER)]

    async def changes(self, name: str = "job") -> list[tuple[str, str]]:
        """The changes that tasks were started for: the kind of change and the name."""
        told = [decode(task.payload)["change"] for task in await self.started(name)]
        return [(each["change"], each.get("name") or each["url"]) for each in told]

    async def turns(self, ms: int, step: int) -> None:
        """Let time pass in steps, with a turn after each."""
        for _ in range(ms // step):
            await self.pass_(step)
            await self.turn()

    async def settle_turns(self) -> None:
        """Turns until nothing is due any more."""
        while await self.turn():
            pass

    async def started(self, name: str = "job") -> list[Task]:
        """All tasks of a handler that were ever made, oldest first."""
        return (await self.store.tasks.list_matching(TaskFilter(kind=HANDLER, name=name), 10_000))[::-1]

    async def ticks(self, name: str = "job") -> list[str]:
        """The ticks that they were started for."""
        return [decode(task.payload)["tick"] for task in await self.started(name)]

    async def lose_task(self, task_id: str | None) -> None:
        """End the task of a schedule or watcher, as canceling it did in older versions."""
        task = await self.store.tasks.find(task_id or "")
        assert task is not None
        await self.committer.commit(Unit(Seen.of(task), Finish("cancel", TaskState.CANCELED)), 1)

    async def finish(self, task_ids: Sequence[str]) -> None:
        """Do those tasks."""
        wanted = set(task_ids)
        for task in await self.claim(HANDLER):
            if task.id in wanted:
                finish = Finish("succeed", TaskState.COMPLETED, result="{}")
                await self.committer.submit(Unit(task.claim, finish))

    async def check(self) -> None:
        """The log explains every row."""
        assert (await verify(self.store)).problems == ()
