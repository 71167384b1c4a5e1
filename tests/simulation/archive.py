"""Copies of pruned rows, taken just before the removal, to judge them at the end and to check that pruning was allowed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.simulation.outcome import Found, find_run, find_task, read_run, read_task

from treadle import Engine
from treadle.kernel.store.queries import Pruned, Rules, RunFilter, TaskFilter
from treadle.model.tasks import Task
from treadle.settings import Settings
from treadle.testing.simulation import Process, VirtualClock

if TYPE_CHECKING:
    from tests.simulation.history import History


class Archive:
    """One for a history."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._store = history.simulation.store
        self._engine: Engine | None = None
        self._going: list[Found] = []
        self._live: dict[str, str] = {}
        self._found: dict[str, Found] = {}

    def watch(self) -> None:
        """From now on."""
        self._history.simulation.before.append(self._before)
        self._history.simulation.after.append(self._after)

    @property
    def engine(self) -> Engine:
        """An engine that reads at once and without faults, for whoever looks from outside; it writes nothing."""
        if self._engine is None:
            clock = VirtualClock(self._history.simulation.loop)
            self._engine = Engine(
                "memory://",
                settings=Settings(),
                clock=clock,
                codec=self._history.codec,
                store_of=lambda *_: self._store.beside(clock),
            )
        return self._engine

    # finding what may be gone

    async def find_task(self, task_id: str) -> Found | None:
        """The task, also when it was pruned."""
        return self._found.get(task_id) or await find_task(self._store, self.engine, task_id)

    async def find_run(self, run_id: str) -> Found | None:
        """The run, also when it was pruned."""
        return self._found.get(run_id) or await find_run(self._store, self.engine, run_id)

    async def list_tasks(self, name: str | None = None) -> list[Task]:
        """All tasks of a name, those that were pruned among them, opened."""
        tasks = [
            await self.engine.kernel.value_store.unpack_task(task)
            for task in await self._store.tasks.list_matching(TaskFilter(name=name), 10_000)
        ]
        gone = {task.id: task for found in self._found.values() for task in found.tasks if name in (None, task.name)}
        return [*tasks, *gone.values()]

    async def list_runs(self) -> list[Found]:
        """All runs, those that were pruned among them."""
        runs = [await read_run(self._store, self.engine, run) for run in await self._store.runs.list_matching(RunFilter(), 10_000)]
        return [*runs, *(found for found in self._found.values() if found.id != found.tasks[0].id)]

    # looking on

    async def _before(self, process: Process, name: str, arguments: tuple[Any, ...]) -> None:
        if name != "retention.prune_trees":
            return
        roots = set(arguments[1])
        self._going, self._live = [], {}
        for task in await self._store.tasks.list_matching(TaskFilter(), 10_000):
            if task.root_id in roots:
                if task.finished:
                    self._going.append(await read_task(self._store, self.engine, task))
                else:
                    self._live[task.root_id] = task.id
        for run in await self._store.runs.list_matching(RunFilter(), 10_000):
            if run.root_id in roots:
                if run.finished:
                    self._going.append(await read_run(self._store, self.engine, run))
                else:
                    self._live[run.root_id] = run.id

    async def _after(self, process: Process, name: str, arguments: tuple[Any, ...], answer: Pruned) -> None:
        if name != "retention.prune_trees":
            return
        rules: Rules = arguments[0]
        for found in self._going:
            if await self._store.tasks.find(found.id) is not None or await self._store.runs.find(found.id) is not None:
                continue
            self._found[found.id] = found
            keep_for = rules.keep_failed_for if found.state == "failed" else rules.keep_completed_for
            if found.root_id in self._live:
                self._wrong(process, found, f"and {self._live[found.root_id]} of its tree is live")
            if found.finished_at is None or found.finished_at > process.clock.now() - keep_for:
                self._wrong(process, found, f"which ended at {found.finished_at}, before its time")

    def _wrong(self, process: Process, found: Found, why: str) -> None:
        self._history.simulation.wrong(f"{process.shown} pruned {found.id} ({found.state}), {why}")
