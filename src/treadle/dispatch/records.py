"""What callers of dispatch see of a job: a status and a state, made from the kernel's task."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec

from treadle.dispatch.issues import GitHubIssue, make_issue
from treadle.model import states
from treadle.model.errors import InvalidInput
from treadle.model.tasks import Task
from treadle.model.values import Json, decode

WORKER_ID = "worker_id"
CHECKPOINT = "checkpoint"


class TaskStatus(StrEnum):
    """Where a job is. `cancelled` is understood, and stored as `canceled`."""

    PENDING = "pending"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELED = "canceled"
    CANCELLED = "canceled"

    @classmethod
    def _missing_(cls, value: object) -> TaskStatus | None:
        return cls.CANCELED if value == "cancelled" else None

    @classmethod
    def of(cls, value: str) -> TaskStatus:
        """The status of that name, or `InvalidInput`."""
        try:
            return cls(value)
        except ValueError:
            raise InvalidInput(f"{value!r} is no status of a job; there are: {', '.join(cls)}.") from None


class TaskState(msgspec.Struct, frozen=True, kw_only=True):
    """A job as it is at one moment. Instants are milliseconds since 1970; changing this changes nothing durable."""

    id: str
    status: TaskStatus
    issue: GitHubIssue
    attempts: int = 0
    """Retries so far: 0 before and during the first execution."""
    last_attempt_at: int | None = None
    completed_at: int | None = None
    """When it completed or failed for good."""
    error: str | None = None
    """The last error; of a job that waits or runs again, why it does."""
    metadata: dict[str, Any] = {}
    """What it was enqueued with, and `worker_id`: who had it last."""


_STATUSES = {
    states.TaskState.RUNNING: TaskStatus.RUNNING,
    states.TaskState.COMPLETED: TaskStatus.COMPLETED,
    states.TaskState.FAILED: TaskStatus.FAILED,
    states.TaskState.IGNORED: TaskStatus.FAILED,
    states.TaskState.CANCELED: TaskStatus.CANCELED,
}

SHOWN_STATES: dict[TaskStatus, tuple[str, ...]] = {
    TaskStatus.PENDING: (states.TaskState.PENDING, states.TaskState.PAUSED),
    TaskStatus.RUNNING: (states.TaskState.RUNNING,),
    TaskStatus.COMPLETED: (states.TaskState.COMPLETED,),
    TaskStatus.FAILED: (states.TaskState.FAILED, states.TaskState.IGNORED),
    TaskStatus.CANCELED: (states.TaskState.CANCELED,),
}
"""The kernel's states that a status stands for."""


def status_of(task: Task) -> TaskStatus:
    """The task's state in the words of dispatch: whatever is live and not held by a worker is pending."""
    return _STATUSES.get(states.TaskState(task.shown_state), TaskStatus.PENDING)


def state_of(task: Task, payload: dict[str, Json]) -> TaskState:
    """The job of a task with its opened payload; raises `InvalidIssue` for one that somebody else made."""
    status = status_of(task)
    given = payload.get("metadata")
    return TaskState(
        id=task.id,
        status=status,
        issue=make_issue(payload.get("issue") or {}),
        attempts=task.failures,
        last_attempt_at=task.claimed_at,
        completed_at=task.finished_at if status in (TaskStatus.COMPLETED, TaskStatus.FAILED) else None,
        error=(decode(task.error) or {}).get("message"),
        metadata={**(given if isinstance(given, dict) else {}), **notes_of(task)},
    )


def notes_of(task: Task) -> dict[str, Any]:
    """What dispatch keeps with a task while it lives and after: who had it, and what its handler left for the next time."""
    notes = decode(task.checkpoint)
    return notes if isinstance(notes, dict) else {}
