"""Repair of a running run: restores missing tasks and unprocessed results, and logs it (D55).

Commits keep their promise without this: a waiting step has a task, and the result of a task is processed or has a task that
will process it. Repair covers outside changes to a store, and the unforeseen.
"""

from __future__ import annotations

from treadle.evaluator import Event, Expand, Finished, Resend, RunRef, StepRow, open_ends
from treadle.kernel.core import Core, Service
from treadle.kernel.runs.advancer import Advancer
from treadle.kernel.runs.decide import errored, load_step
from treadle.kernel.runs.flows import Flows
from treadle.kernel.store.lookups import all_steps, every_task
from treadle.kernel.store.queries import TaskFilter
from treadle.model.names import ADVANCE
from treadle.model.runs import Run
from treadle.model.states import SHOWN_LIVE_STATES, RunState, TaskState
from treadle.model.tasks import Task


class RunRepairs(Service):
    """The part of `Runs` that repairs runs; the cost is proportional to the steps of a run."""

    def __init__(self, core: Core, advancer: Advancer, flows: Flows) -> None:
        super().__init__(core)
        self._advancer = advancer
        self._flows = flows

    async def _repair(self, run_id: str, actor: str | None) -> list[str]:
        """Process inboxes, expand blocks and replace missing tasks; returns the rows that lacked something.

        All reads and writes hold for one version of the run.
        """
        while await self._store.runs.list_steps(run_id, None, 1, with_inbox=True):
            await self._advancer.offer(run_id)

        async def attempt() -> list[str]:
            run = await self._store.runs.find(run_id)
            if run is None or run.state != RunState.RUNNING:
                return []
            events = await self._missing(run)
            if not events:
                return []
            ignored = await self._advancer.offer(run_id, *events.values(), actor=actor, repair=run.version)
            return [] if len(ignored) == len(events) else list(events)

        repaired = await self._committer.transact(attempt, f"repair the run {run_id}")
        await self._withdraw(run_id)
        return repaired

    async def _withdraw(self, run_id: str) -> None:
        """End what a run that will fail still holds: a step may have parked while it was paused, or its worker died after that."""
        async for task in every_task(self._store, TaskFilter(states=SHOWN_LIVE_STATES, run_id=run_id)):
            waits = task.state == TaskState.PENDING and task.owner_id is None and (task.claim_version == 0 or task.failures > 0)
            if task.step_id is not None and (waits or task.state == TaskState.AWAITING_APPROVAL):
                return await self._advancer.withdraw(run_id)
        return None

    async def _missing(self, run: Run) -> dict[str, Event]:
        """The events that would let the run continue, by row."""
        live = [task async for task in every_task(self._store, TaskFilter(states=SHOWN_LIVE_STATES, run_id=run.id))]
        if any(task.kind == ADVANCE for task in live):
            return {}  # an advance is pending
        program = await self._flows.program(run.flow_id)
        waiting, unexpanded = open_ends(program, RunRef(id=run.id, workflow=run.workflow), await self._all_steps(run.id))
        served = {task.id for task in live}
        missing = {row.task_id: row for row in waiting if row.task_id is not None and row.task_id not in served}
        events: dict[str, Event] = {row.id: Expand(row.id) for row in unexpanded}
        ended = {task.id: task for task in await self._store.tasks.find_many(list(missing), ended=True)}
        for task_id, row in missing.items():
            task = ended.get(task_id)
            events[row.id] = Resend(row.id) if task is None else self._end_of(row, task)
        return events

    def _end_of(self, row: StepRow, task: Task) -> Event:
        if task.state == TaskState.COMPLETED:
            return Finished(row.id, self._value_store.unfold(task.result), task.id)
        return errored(row.id, task.error, task.id)

    async def _all_steps(self, run_id: str) -> list[StepRow]:
        """All rows of the run."""
        return [load_step(step, self._value_store) for step in await all_steps(self._store, run_id)]
