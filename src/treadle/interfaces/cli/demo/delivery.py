"""The waiting part of the demo: a durable function sleeps, asks a person and continues, without occupying a worker."""

from __future__ import annotations

from dataclasses import dataclass

from treadle.engine import Engine
from treadle.model.names import FUNCTION
from treadle.model.states import RunState
from treadle.model.values import Json

REST = 1.5
"""Seconds that the cloth rests before the question."""

ACTOR = "demo"


@dataclass(slots=True)
class Delivery:
    """A run of the function `loom.Deliver`, as the store shows it."""

    engine: Engine
    run_id: str = ""
    seen_asleep: bool = False
    waits: int = 0
    """Number of entries `wait` in the history of its task."""
    asked: str = ""
    approval_id: str = ""
    result: Json = None
    ended: bool = False

    async def start(self) -> None:
        """Start the function."""
        self.run_id = (await self.engine.start_function("loom.Deliver", {"to": "the castle", "rest": REST})).id

    async def follow(self) -> str | None:
        """Check its progress and approve its question with an edit; return any news as a sentence."""
        if self.ended:
            return None
        if not self.approval_id:
            return await self._sleep_or_ask()
        run = await self.engine.kernel.run_reads.get_run(self.run_id)
        if run.state not in (RunState.COMPLETED, RunState.FAILED, RunState.CANCELED):
            return None
        self.ended = True
        for task in await self.engine.kernel.reads.list_tasks(run_id=self.run_id, kind=FUNCTION):
            self.waits += [move.move for move in await self.engine.kernel.reads.list_moves(task.id)].count("wait")
        self.result = (await self.engine.runs.outputs(run)).get("result") if run.state == RunState.COMPLETED else run.error
        return f"the delivery: {run.state}, {self.result}"

    async def _sleep_or_ask(self) -> str | None:
        pending = (await self.engine.approvals.list(run_id=self.run_id)).approvals
        if pending:
            shown = pending[0]
            self.approval_id, self.asked = shown.id, shown.title
            await self.engine.approvals.decide(shown.id, "approve", actor=ACTOR, reason="in daylight", edits={"at": "noon"})
            return f"the delivery: asks {self.asked!r}. Somebody approves it, for noon; it continues immediately."
        tasks = await self.engine.kernel.reads.list_tasks(run_id=self.run_id)
        asleep = any(task.owner_id is None and task.wake_at is not None for task in tasks)
        if asleep and not self.seen_asleep:
            self.seen_asleep = True
            return f"the delivery: a Python function sleeps for {REST:g} s in the store, without occupying a worker."
        return None

    @property
    def holds(self) -> bool:
        """Whether it slept, waited for the approval, and received the decision."""
        return self.waits >= 2 and bool(self.approval_id) and self.result == {"to": "the castle", "at": "noon", "by": ACTOR}
