"""Jobs as callers of dispatch see them: status and state, converted from the kernel's task."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any

import msgspec

from treadle.model import states
from treadle.model.errors import ClaimLost, InvalidInput
from treadle.model.tasks import FRAMEWORK, SOURCE, LogLine, Task
from treadle.model.values import Json, decode, decode_error, encode, storable

_Id = Annotated[int, msgspec.Meta(ge=1)]
_Text = Annotated[str, msgspec.Meta(min_length=1)]
_FullName = Annotated[str, msgspec.Meta(pattern=r"^[^/\s]+/[^/\s]+$")]


class InvalidIssue(InvalidInput, code="invalid_issue"):
    """The enqueued object is not a GitHub issue; the message names the field."""


class Label(msgspec.Struct, frozen=True):
    """A label of an issue."""

    name: _Text


class Owner(msgspec.Struct, frozen=True):
    """The owner of a repository."""

    login: _Text


class Repository(msgspec.Struct, frozen=True, kw_only=True):
    """The repository of an issue."""

    id: _Id
    name: _Text
    full_name: _FullName
    owner: Owner
    clone_url: _Text
    default_branch: _Text


class Installation(msgspec.Struct, frozen=True):
    """The installation of the GitHub app that sent the issue."""

    id: _Id


class GitHubIssue(msgspec.Struct, frozen=True, kw_only=True):
    """An issue; other fields of GitHub are dropped."""

    id: _Id
    number: _Id
    title: _Text
    body: str | None = None
    labels: list[Label] = []
    repository: Repository
    installation: Installation | None = None


def make_issue(given: GitHubIssue | Mapping[str, Any]) -> GitHubIssue:
    """Check an issue from a JSON object (or a Python object); raise `InvalidIssue`, which names the invalid field."""
    if not isinstance(given, GitHubIssue | Mapping):
        raise InvalidIssue(f"A GitHub issue is a JSON object, not {type(given).__name__}.")
    try:
        return msgspec.convert(msgspec.to_builtins(given), GitHubIssue)
    except (msgspec.ValidationError, TypeError, ValueError) as error:
        raise InvalidIssue(f"This is not a GitHub issue: {str(error).replace('`$', '`issue')}.") from None


def issue_json(issue: GitHubIssue) -> dict[str, Json]:
    """Return the issue as JSON, without an absent installation."""
    document: dict[str, Json] = msgspec.to_builtins(issue)
    if issue.installation is None:
        del document["installation"]
    return document


_MESSAGE_LIMIT = 4096


def end_line(task_id: str, at: int, attempt: int, worker_id: str | None, error: str | None = None) -> LogLine:
    """Return the line of an execution that completed, or failed with the error."""
    return LogLine(
        task_id=task_id,
        at=at,
        level="info" if error is None else "error",
        message="Task completed successfully" if error is None else storable(error, _MESSAGE_LIMIT),
        details=encode({SOURCE: FRAMEWORK, "attempt": attempt, WORKER_ID: worker_id}),
    )


WORKER_ID = "worker_id"
CLAIMED_BY = "claimed_by"
CHECKPOINT = "checkpoint"


class TaskStatus(StrEnum):
    """The status of a job. `cancelled` is accepted, and stored as `canceled`."""

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
        """Return the status of that name, or raise `InvalidInput`."""
        try:
            return cls(value)
        except ValueError:
            raise InvalidInput(f"{value!r} is not a job status; choose one of {', '.join(cls)}.") from None


class TaskState(msgspec.Struct, frozen=True, kw_only=True):
    """A copy of a job. Instants are milliseconds since 1970."""

    id: str
    status: TaskStatus
    issue: GitHubIssue
    attempts: int = 0
    """Retries so far: 0 before and during the first execution."""
    last_attempt_at: int | None = None
    completed_at: int | None = None
    """The time when it completed or failed permanently."""
    error: str | None = None
    """The error of a failed or canceled job. A retry clears it; the log lines of the job keep it."""
    metadata: dict[str, Any] = {}
    """The metadata given to `enqueue`, and `worker_id`, its last worker."""


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
"""The kernel's states for each status."""


def status_of(task: Task) -> TaskStatus:
    """Return the task's status: a live task that no worker holds is pending."""
    return _STATUSES.get(states.TaskState(task.shown_state), TaskStatus.PENDING)


def state_of(task: Task, payload: dict[str, Json]) -> TaskState:
    """Return the job of a task with its opened payload; raise `InvalidIssue` for a task that another program stored."""
    status = status_of(task)
    metadata = payload.get("metadata")
    notes = {name: value for name, value in notes_of(task).items() if name != CLAIMED_BY}
    return TaskState(
        id=task.id,
        status=status,
        issue=make_issue(payload.get("issue") or {}),
        attempts=task.failures,
        last_attempt_at=task.claimed_at,
        completed_at=task.finished_at if status in (TaskStatus.COMPLETED, TaskStatus.FAILED) else None,
        error=None if status in (TaskStatus.PENDING, TaskStatus.RUNNING) else decode_error(task.error).get("message"),
        metadata={**(metadata if isinstance(metadata, dict) else {}), **notes},
    )


def notes_of(task: Task) -> dict[str, Any]:
    """Return dispatch's data on a task: its last worker and that worker's token, and its handler's checkpoint."""
    notes = decode(task.checkpoint)
    return notes if isinstance(notes, dict) else {}


def worker_of(task: Task) -> str | None:
    """Return the worker that has, or had last, the job."""
    return notes_of(task).get(WORKER_ID)


def check_worker(task: Task, worker_id: str | None, actor: str | None) -> None:
    """Raise `ClaimLost` for a worker or a token that did not have the job last."""
    claimed_by = notes_of(task).get(CLAIMED_BY)
    if (worker_id is not None and worker_of(task) != worker_id) or (actor is not None and claimed_by not in (None, actor)):
        raise ClaimLost(task.id, task.claim_version)
