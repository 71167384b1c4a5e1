"""Records of the API that several operations return, made from stored ones."""

from __future__ import annotations

from treadle.api.tasks import MoveRecord, Why
from treadle.api.wire import record_of
from treadle.kernel.queue.why import Reason
from treadle.model.runs import Run
from treadle.model.tasks import Move, Task
from treadle.model.values import decode


def why_task(task: Task, reason: Reason) -> Why:
    """The reason for a task's state."""
    return Why(task.id, task.name, task.shown_state, reason.code, reason.text)


def why_run(run: Run, reason: Reason) -> Why:
    """The reason for a run's state."""
    return Why(run.id, run.workflow, str(run.state), reason.code, reason.text)


def move_record(move: Move) -> MoveRecord:
    """A row of the log."""
    return record_of(MoveRecord, move, data=decode(move.data))
