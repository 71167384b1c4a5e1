"""Records of the API that several operations return, made from stored ones."""

from __future__ import annotations

from treadle.api.tasks import TransitionRecord, Why
from treadle.api.wire import record_of
from treadle.kernel.queue.why import Reason
from treadle.model.runs import Run
from treadle.model.tasks import Task, Transition
from treadle.model.values import decode_or_error


def why_task(task: Task, reason: Reason) -> Why:
    """The reason for a task's state."""
    return Why(task.id, task.name, task.shown_state, reason.code, reason.text)


def why_run(run: Run, reason: Reason) -> Why:
    """The reason for a run's state."""
    return Why(run.id, run.workflow, str(run.state), reason.code, reason.text)


def transition_record(transition: Transition) -> TransitionRecord:
    """A row of the log."""
    return record_of(TransitionRecord, transition, data=decode_or_error(transition.data) or None)
