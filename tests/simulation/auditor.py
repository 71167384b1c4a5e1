"""Looks at every call that the store does, and at the whole store now and then: what must hold at each moment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.simulation.faults import FaultySimulation

from treadle.kernel.store.queries import RunFilter, TaskFilter
from treadle.kernel.store.records import PutRecord
from treadle.kernel.store.units import BlockRun, Finish, Keep, PutRun, Requeue, RunTransition, Unit, UnitAnswer, Verdict
from treadle.model.states import TaskState
from treadle.model.tasks import Claim, Task
from treadle.testing.simulation import Process

LIVE = ("pending", "running", "paused", "awaiting_external", "awaiting_approval")
UNFINISHED = ("pending", "running", "paused")


class Auditor:
    """One for a history."""

    def __init__(self, simulation: FaultySimulation) -> None:
        self._simulation = simulation
        self._store = simulation.store
        self._claims: dict[tuple[str, int], str] = {}
        self._owners: dict[str, Process] = {}
        self._settled: set[tuple[Claim, str]] = set()
        self._held: dict[str, Task | None] = {}
        """The guarded tasks of the commit in progress, as they were before it."""
        self._unexpired: list[Task] = []
        self._operated = False
        """Whether an operator has held something back."""

    def holder_of(self, task_id: str, version: int) -> str | None:
        """The process that received the claim."""
        return self._claims.get((task_id, version))

    def watch(self) -> None:
        """From now on."""
        self._simulation.before.append(self._before)
        self._simulation.after.append(self._after)

    async def _before(self, process: Process, name: str, arguments: tuple[Any, ...]) -> None:
        if name == "commit":
            guards = [unit.guard for unit in arguments[0] if isinstance(unit.guard, Claim)]
            self._held = {guard.task_id: await self._store.tasks.find(guard.task_id) for guard in guards}
        elif name == "tasks.wake":
            self._unexpired = []
            if arguments[-1] is False:
                return
            tasks = await self._store.tasks.list_matching(TaskFilter(states=LIVE), 1000)
            self._unexpired = [task for task in tasks if task.owner_id and (task.wake_at or 0) > process.clock.now()]
        elif name == "tasks.expire_leases_of":
            for owner_id in arguments[0]:
                if (owner := self._owners.get(owner_id)) is not None and owner.alive:
                    if (process.pid, owner.pid) in self._simulation.faults.presumed:
                        continue  # a fault of this history
                    self._simulation.wrong(f"{process.shown} takes the work of {owner.shown}, which is alive")

    async def _after(self, process: Process, name: str, arguments: tuple[Any, ...], answer: Any) -> None:
        if name == "tasks.claim":
            for task in answer:
                self._claimed(process, task)
            await self._check_held_back(process, answer)
            if keys := {task.limit_key for task in answer if task.limit_key}:
                await self._check_limits(keys)
        elif name == "operators.set_list":
            self._operated = True
        elif name == "commit":
            self._operated = self._operated or _operates(arguments[0])
            self._committed(process, arguments[0], answer)
            await self._check_done(process, arguments[0], answer)
        elif name == "tasks.wake":
            for task in self._unexpired:
                now = await self._store.tasks.find(task.id)
                if now is None or now.claim != task.claim:
                    self._simulation.wrong(f"{process.shown} took {task.id} from {task.owner_id} before its lease had run out")

    def _claimed(self, process: Process, task: Task) -> None:
        """No two callers receive the same (task, version)."""
        claim = (task.id, task.claim_version)
        if claim in self._claims:
            self._simulation.wrong(f"the claim {claim} was given to {self._claims[claim]} and to {process.shown}")
        self._claims[claim] = process.shown
        self._owners[task.owner_id or ""] = process

    async def _check_held_back(self, process: Process, tasks: Sequence[Task]) -> None:
        """Nothing of a canceled run is taken, nor of a paused list or run, but for the polls of its external jobs (D20)."""
        if not self._operated:
            return
        paused = {each.task_list for each in await self._store.operators.list_lists() if each.paused}
        for task in tasks:
            run = None if task.run_id is None else await self._store.runs.find(task.run_id)
            if run is not None and run.state == "canceled":
                self._simulation.wrong(f"{process.shown} took {task.id} ({task.name}) of run {run.id}, which is canceled")
            if run is not None and run.state == "paused" and task.state != TaskState.AWAITING_EXTERNAL:
                self._simulation.wrong(f"{process.shown} took {task.id} ({task.name}) of run {run.id}, which is paused")
            if task.task_list in paused or task.blocked_by:
                self._simulation.wrong(f"{process.shown} took {task.id} ({task.name}), which is paused")

    async def _check_limits(self, keys: set[str]) -> None:
        """Never more than the limit allows (D3); a limit that was lowered is for those who come."""
        tasks = await self._store.tasks.list_matching(TaskFilter(states=LIVE), 1000)
        for limit in await self._store.operators.list_limits("default"):
            held = [task for task in tasks if task.limit_key == limit.key and task.owner_id is not None]
            if limit.key in keys and limit.max_running is not None and len(held) > limit.max_running:
                self._simulation.wrong(f"{len(held)} tasks of {limit.key} are held, and {limit.max_running} may be")

    def _committed(self, process: Process, units: Sequence[Unit], answers: Sequence[UnitAnswer]) -> None:
        """Check that only the holder of the claim writes the consequences of held work."""
        for unit, answer in zip(units, answers, strict=True):
            guard = unit.guard
            if not isinstance(guard, Claim) or answer.verdict is not Verdict.DONE:
                continue
            before = self._held[guard.task_id]
            transition = (
                "keep"
                if unit.settlement is None or isinstance(unit.settlement, Keep)
                else getattr(unit.settlement, "transition", "")
            )
            holds = before is not None and not before.finished and before.claim == guard
            if not holds and (guard, transition) not in self._settled:
                now = None if before is None else (before.state, before.claim_version, before.owner_id)
                self._simulation.wrong(f"{process.shown} wrote as holder of {guard}, which it was not: {now}")
            self._settled.add((guard, transition))

    async def _check_done(self, process: Process, units: Sequence[Unit], answers: Sequence[UnitAnswer]) -> None:
        """Check that every unit reported as done is stored."""
        for unit, answer in zip(units, answers, strict=True):
            if answer.verdict is not Verdict.DONE or any(isinstance(row, PutRun | PutRecord) for row in unit.rows):
                continue  # what is there already was sent before, or by somebody else: the unit is done then, and was not now
            if isinstance(unit.guard, Claim) and isinstance(unit.settlement, Finish | Requeue):
                now = await self._store.tasks.find(unit.guard.task_id)
                if now is None or (now.claim == unit.guard and not now.finished):
                    self._simulation.wrong(f"{process.shown} was told that {unit.guard} was settled, and it was not")
            told = {*answer.existing, *answer.same}
            for task in unit.tasks:
                if task.id not in told and task.unique_key not in told and await self._store.tasks.find(task.id) is None:
                    self._simulation.wrong(f"{process.shown} was told that the new task {task.id} is there, and it is not")

    async def look(self) -> None:
        """Check that everything that waits has a pending wake-up; valid between any two calls."""
        simulation = self._simulation
        tasks = await self._store.tasks.list_matching(TaskFilter(states=LIVE), 1000)
        for task in tasks:
            if task.owner_id is not None and task.wake_at is None:
                simulation.wrong(f"task {task.id} ({task.name}) is held for ever by {task.owner_id}")
        runs = {task.run_id for task in tasks}
        for run in await self._store.runs.list_matching(RunFilter(states=UNFINISHED), 1000):
            if run.id not in runs:
                simulation.wrong(f"run {run.id} ({run.workflow}) is {run.state}, and nothing of it will ever happen")


def _operates(units: Sequence[Unit]) -> bool:
    """Whether one of them holds a run back, or cancels it."""
    rows = [row for unit in units for row in unit.rows]
    return any(isinstance(row, BlockRun) or (isinstance(row, RunTransition) and row.transition == "cancel") for row in rows)
