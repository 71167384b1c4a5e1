"""The outcomes of an attempt: one algebra for every kind of handler.

Handlers return a dict (or None) for success, raise for failure, or return one of these.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from treadle.model.approvals import ApprovalRequest
from treadle.model.errors import RunCanceled, RunFailed, TaskCanceled, TaskFailed, TaskIgnored, TreadleError
from treadle.model.external import ExternalProductionHandle, Production
from treadle.model.states import RunState, TaskState
from treadle.model.values import CODE_LIMIT, TEXT_LIMIT, Json, storable

TYPE_CHANGED = "type_changed"
"""The code of the problem of a run whose recorded values do not match the types that its code gives them now."""


class Problem(msgspec.Struct, frozen=True):
    """The reason of a failure: a stable code, a message for people, and its origin."""

    code: str
    message: str
    type: str | None = None
    traceback: str | None = None
    exception: dict[str, Json] | None = None
    """The exception in stored form (`workers.exceptions`)."""

    @property
    def classes(self) -> list[str]:
        """The names of the exception's classes, its own first; none if no exception is known."""
        return self.exception["classes"] if self.exception else [self.type] if self.type else []

    def unretried(self, reason: str) -> Problem:
        """Return the problem of work that is not retried for that reason."""
        return msgspec.structs.replace(self, message=f"{self.message} (not retried: {reason})")

    def storable(self) -> Problem:
        """Return the problem with plain texts that both stores accept, cut to their limits."""
        limits = ((self.code, CODE_LIMIT), (self.message, TEXT_LIMIT), (self.type, CODE_LIMIT), (self.traceback, TEXT_LIMIT))
        code, message, kind, trace = (None if text is None else storable(text, limit) for text, limit in limits)
        code = code or "failed"
        return Problem(code, message or code, kind, trace, self.exception)

    def as_json(self) -> dict[str, Json]:
        """Return the parts that are set."""
        return {name: value for name, value in msgspec.structs.asdict(self).items() if value is not None}


class Succeeded(msgspec.Struct, frozen=True):
    """The work is done; callers waiting for the task receive `result`."""

    result: dict[str, Json] = msgspec.field(default_factory=dict)


RETRIED_FOR = 100
"""Least milliseconds between the retries of a task, after the first one: none is claimed more than ten times a second."""


class Retry(msgspec.Struct, frozen=True):
    """The attempt failed; try again by the task's policy, or after `after_for` milliseconds if given."""

    problem: Problem
    after_for: int | None = None


class Failed(msgspec.Struct, frozen=True):
    """The task failed permanently, regardless of its policy."""

    problem: Problem


class Waiting(msgspec.Struct, frozen=True):
    """Nothing to do for `wait_for` milliseconds; meanwhile no worker is occupied. Re-entry receives `checkpoint`."""

    wait_for: int
    checkpoint: Json = None


class AwaitingApproval(msgspec.Struct, frozen=True):
    """A person has to decide; meanwhile no worker is occupied. Re-entry receives the decision and `checkpoint`.

    If the approval is denied, or expires without being asked again, the task fails and the handler is not called.
    """

    request: ApprovalRequest
    checkpoint: Json = None


class Paused(msgspec.Struct, frozen=True):
    """Held until an operator resumes it."""

    reason: str


RELEASED_FOR = 1000
"""Milliseconds until a task that was released, or that made no progress, is claimed again."""


class Released(msgspec.Struct, frozen=True):
    """The worker returns the task unfinished, because it stops or cannot execute it now; the same attempt is made again.

    After `after_for` milliseconds: a task that nobody can execute must not be claimed again and again (D79). 0: immediately, for
    a holder that goes away.
    """

    reason: str = "worker stopped"
    after_for: int = RELEASED_FOR

    @classmethod
    def by_holder(cls, reason: str, claim_version: int) -> Released:
        """A release that the holder asks for: immediate after the first claim, so that a holder that repeats it does so slowly."""
        return cls(reason, 0 if claim_version == 1 else RELEASED_FOR)


class AwaitingExternal(msgspec.Struct, frozen=True):
    """The work continues in an external service: a specialist's `start` returned a handle."""

    handle: ExternalProductionHandle
    token: str
    specialist: str
    deadline_for: int | None = None
    reattached: bool = False
    """A later worker found the job at the service after a crash, and did not submit it again."""


class StillWorking(msgspec.Struct, frozen=True):
    """A poll that did not end the job; if it raised, `handle` is None and `error` is set."""

    handle: ExternalProductionHandle | None
    error: str | None = None


class Produced(msgspec.Struct, frozen=True):
    """The job is done: the last production is the result. All productions are stored when the task ends."""

    productions: tuple[Production, ...]


Outcome = Succeeded | Retry | Failed | Waiting | AwaitingApproval | AwaitingExternal | StillWorking | Produced | Paused | Released


def error_of_task(task_id: str, state: str, code: str | None, error: Mapping[str, Any]) -> TreadleError:
    """Return the error for a caller of a task that has ended without a result."""
    message = error.get("message", "")
    match state:
        case TaskState.FAILED:
            return TaskFailed(task_id, code or "failed", message)
        case TaskState.CANCELED:
            return TaskCanceled(f"Task {task_id} was canceled: {message}")
        case _:
            return TaskIgnored(f"Task {task_id} ended as {state}.")


def error_of_run(run_id: str, state: str, failed_step_id: str | None, error: Mapping[str, Any]) -> TreadleError:
    """Return the error for a caller of a run that has ended without outputs."""
    message = error.get("message", "")
    if state == RunState.CANCELED:
        return RunCanceled(f"Run {run_id} was canceled: {message}")
    return RunFailed(run_id, failed_step_id, message)
