"""Runs simulated in memory: the evaluator with all rows of one run at hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from treadle.evaluator.advance import advance
from treadle.evaluator.records import (
    Changes,
    Event,
    Expand,
    Limits,
    LoadedRows,
    LogEntry,
    Need,
    RequestedTask,
    RunRef,
    StepError,
    StepRow,
)
from treadle.lang import Program
from treadle.model.errors import InvalidInput
from treadle.model.ids import uuid7
from treadle.model.states import RunState
from treadle.model.values import Json, decode, encode


class SimulatedRun:
    """One run; whoever performs its tasks applies the events."""

    def __init__(self, program: Program, workflow: str, *, limits: Limits | None = None, number: int = 1) -> None:
        facet = program.find_workflow(workflow)
        if facet is None:
            names = ", ".join(sorted(declared.qualified_name for declared in program.workflows)) or "none"
            raise InvalidInput(f"There is no workflow `{workflow}`, or several have this name. Known: {names}.")
        self.program, self.limits = program, limits or Limits()
        self.run = RunRef(id=uuid7(1_700_000_000_000, number.to_bytes(10, "big")), workflow=facet.qualified_name)
        self.status = RunState.PENDING
        self.outputs: dict[str, Any] | None = None
        self.error: StepError | None = None
        self.tasks: dict[str, RequestedTask] = {}
        self.again: dict[str, None] = {}
        self.logs: list[LogEntry] = []
        self.ignored: list[str] = []
        self._rows: dict[str, StepRow] = {}
        self._view = LoadedRows()

    def step(self, row_id: str) -> StepRow:
        """Return the row with this id."""
        return self._rows[row_id]

    def value(self, value: Json) -> Json:
        """Return the JSON of an attribute value."""
        return value

    def decide(self, events: Sequence[Event]) -> Changes:
        """Return the evaluator's decision about the events; nothing is stored."""
        run = RunRef(id=self.run.id, workflow=self.run.workflow, rows=len(self._rows))
        while isinstance(answer := advance(self.program, run, self._view, events, self.limits), Need):
            self._view.add_absent(*answer.rows)
        return answer

    def commit(self, changes: Changes) -> None:
        """Store a decision."""
        for row in (*changes.created, *changes.updated):
            self.store(row)
            if row.id in self.tasks and self.tasks[row.id].id != row.task_id:
                del self.tasks[row.id]
        for task in changes.tasks:
            assert task.step_id not in self.tasks, "at most one live task per step"
            self.tasks[task.step_id] = task
        self.again |= dict.fromkeys(changes.again)
        self.logs += changes.logs
        self.ignored += [event.reason for event in changes.ignored]
        self.status, self.error = changes.status or self.status, changes.error or self.error
        if changes.outputs is not None:
            self.outputs = {name: self.value(value) for name, value in changes.outputs.items()}

    def store(self, row: StepRow) -> None:
        """Store a row."""
        if row.id in self._rows:
            self._view.add(row)
        else:
            self._view.add_new(row)
        self._rows[row.id] = row

    def apply(self, *events: Event) -> Changes:
        """Decide and store."""
        changes = self.decide(events)
        self.commit(changes)
        return changes

    def settle(self) -> None:
        """Expand all blocks that wait for expansion."""
        while self.again:
            blocks, self.again = self.again, {}
            self.apply(*(Expand(block_id) for block_id in blocks))

    def payload(self, task: RequestedTask) -> dict[str, Any]:
        """Return the handler's payload, decoded from JSON."""
        payload: dict[str, Any] = decode(encode({name: self.value(value) for name, value in task.payload.items()}))
        return payload
