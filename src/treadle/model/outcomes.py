"""What an attempt came to: one algebra for every kind of handler.

Handlers return a dict (or None) for success, raise for failure, or return one of these.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from treadle.model.approvals import ApprovalRequest
from treadle.model.external import ExternalProductionHandle, Production
from treadle.model.values import Json


@dataclass(frozen=True, slots=True)
class Problem:
    """Why something failed: a stable code, a message for people, and where it came from."""

    code: str
    message: str
    type: str | None = None
    traceback: str | None = None

    def as_json(self) -> dict[str, str]:
        """The parts that are there."""
        parts = {"code": self.code, "message": self.message, "type": self.type, "traceback": self.traceback}
        return {name: value for name, value in parts.items() if value is not None}


@dataclass(frozen=True, slots=True)
class Succeeded:
    """The work is done; `result` goes to whoever waits for it."""

    result: dict[str, Json] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Retry:
    """The attempt failed; try again by the task's policy, or after `after_for` milliseconds if given."""

    problem: Problem
    after_for: int | None = None


@dataclass(frozen=True, slots=True)
class Failed:
    """The task failed for good, whatever its policy says."""

    problem: Problem


@dataclass(frozen=True, slots=True)
class Waiting:
    """Nothing to do for `wait_for` milliseconds; no worker is held meanwhile. `checkpoint` is given back on re-entry."""

    wait_for: int
    checkpoint: Json = None


@dataclass(frozen=True, slots=True)
class AwaitingApproval:
    """A person has to decide; no worker is held meanwhile. The handler is entered again with the decision, and `checkpoint`.

    If it is denied, or expires without being asked again, the task fails and the handler is not entered.
    """

    request: ApprovalRequest
    checkpoint: Json = None


@dataclass(frozen=True, slots=True)
class Paused:
    """Held until an operator resumes it."""

    reason: str


@dataclass(frozen=True, slots=True)
class Released:
    """The worker gives the task back unfinished (it is shutting down); another takes it at once."""

    reason: str = "worker stopped"


@dataclass(frozen=True, slots=True)
class AwaitingExternal:
    """The work goes on in an outside service: a specialist's `start` came to a handle."""

    handle: ExternalProductionHandle
    token: str
    specialist: str
    deadline_for: int | None = None
    reattached: bool = False
    """The job was found at the service after a worker was lost: it was not submitted again."""


@dataclass(frozen=True, slots=True)
class StillWorking:
    """A poll that did not end the job; `handle` is None where it raised, and `error` says what."""

    handle: ExternalProductionHandle | None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Produced:
    """The job is done: the last of the productions is the result. All of them are stored with the end of the task."""

    productions: tuple[Production, ...]


Outcome = Succeeded | Retry | Failed | Waiting | AwaitingApproval | AwaitingExternal | StillWorking | Produced | Paused | Released
