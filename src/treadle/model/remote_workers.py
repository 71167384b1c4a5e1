"""The records of the remote worker protocol: claimed tasks, and the state of claims. Pure.

A remote worker is a program in any language that claims and settles tasks through an interface of the engine, and never
sees the store. Instants are milliseconds since 1970 UTC by the store's clock, which may differ from the worker's: the rest of a
lease is therefore also given as a duration.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from treadle.model.tasks import Claim, Server, Task
from treadle.model.values import Json

HELD, CANCELED, LOST = "held", "canceled", "lost"


@dataclass(frozen=True, slots=True)
class ClaimedTask:
    """A task that a worker holds, with everything needed to work on it."""

    task: Task
    """The task when it was claimed, with its payload decoded from the value store."""
    payload: dict[str, Json]
    lease_expires_at: int
    lease_for: int
    """Milliseconds left of the lease when the task was claimed."""
    checkpoint: Json = None
    """Partial results of earlier attempts, or the checkpoint given with `wait` or `ask`."""
    approval_decisions: tuple[dict[str, Json], ...] = ()
    """The approvals granted to the task so far, oldest first."""

    @property
    def claim(self) -> Claim:
        return self.task.claim

    @property
    def claim_version(self) -> int:
        """The version that every request about this claim must carry; it rises with each claim of the task."""
        return self.task.claim_version

    @property
    def attempt(self) -> int:
        """The number of this execution, from 1."""
        return self.task.attempt

    @property
    def deadline_at(self) -> int | None:
        """The absolute deadline of the task, or None."""
        return self.task.deadline_at

    @property
    def trace_id(self) -> str | None:
        return self.task.trace_id

    @property
    def approval_decision(self) -> dict[str, Json] | None:
        """The latest granted approval, for a task that asked; else None."""
        return self.approval_decisions[-1] if self.approval_decisions else None


@dataclass(frozen=True, slots=True)
class HeldClaim:
    """The state of a claim: `held`, `canceled` with its task, or `lost` (it expired, or was settled)."""

    task_id: str
    claim_version: int
    state: str
    lease_expires_at: int | None = None
    lease_for: int | None = None
    """Milliseconds left of the lease."""

    @property
    def cancel_requested(self) -> bool:
        """Whether the work should stop because its task was canceled; there is nothing to settle then."""
        return self.state == CANCELED


@dataclass(frozen=True, slots=True)
class Beaten:
    """The response to a heartbeat: the worker's row, and each claim it named, in that order."""

    server: Server
    claims: tuple[HeldClaim, ...] = field(default=())
