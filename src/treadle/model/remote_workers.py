"""What outside workers are given: tasks that they have claimed, and how their claims stand. Pure.

An outside worker is a program in any language that claims and settles tasks through an interface of the engine, and never
sees the store. Instants are milliseconds since 1970 UTC by the store's clock, which may differ from the worker's own: what
is left of a lease is therefore told as a duration too.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from treadle.model.tasks import Claim, Server, Task
from treadle.model.values import Json

HELD, CANCELED, LOST = "held", "canceled", "lost"


@dataclass(frozen=True, slots=True)
class ClaimedTask:
    """A task that a worker holds, with all that it needs to work on it."""

    task: Task
    """As it was taken; its payload is opened."""
    payload: dict[str, Json]
    lease_expires_at: int
    lease_for: int
    """Milliseconds of the lease that were left when it was taken."""
    checkpoint: Json = None
    """What earlier attempts left: partial results, or what was given with `wait` or `ask`."""
    approval_decisions: tuple[dict[str, Json], ...] = ()
    """The approvals that were given to the task so far, oldest first."""

    @property
    def claim(self) -> Claim:
        return self.task.claim

    @property
    def claim_version(self) -> int:
        """What every word about this claim must carry; it rises with each claim of the task."""
        return self.task.claim_version

    @property
    def attempt(self) -> int:
        """The number of this execution, from 1."""
        return self.task.attempt

    @property
    def deadline_at(self) -> int | None:
        """When the task is no longer worth doing, or None."""
        return self.task.deadline_at

    @property
    def trace_id(self) -> str | None:
        return self.task.trace_id

    @property
    def approval_decision(self) -> dict[str, Json] | None:
        """The last approval that was given, for a task that had asked; else None."""
        return self.approval_decisions[-1] if self.approval_decisions else None


@dataclass(frozen=True, slots=True)
class HeldClaim:
    """How a claim stands: `held` until then, `canceled` with its task, or `lost` (it expired, or was settled)."""

    task_id: str
    claim_version: int
    state: str
    lease_expires_at: int | None = None
    lease_for: int | None = None
    """Milliseconds that are left of the lease."""

    @property
    def cancel_requested(self) -> bool:
        """Whether the work should stop because its task was canceled; nothing is to be settled then."""
        return self.state == CANCELED


@dataclass(frozen=True, slots=True)
class Beaten:
    """What a beat is answered with: the worker's row, and each claim that was named, in that order."""

    server: Server
    claims: tuple[HeldClaim, ...] = field(default=())
