"""The worker protocol: a worker in any language registers, claims, holds, and says what came of it. See docs/explanation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Protocol

from treadle.api import contract
from treadle.api.contract import ApiRecord, Doc
from treadle.api.tasks import TaskId
from treadle.api.wire import Instant
from treadle.model.access import Scope
from treadle.model.names import DEFAULT_LIST
from treadle.model.values import Json

WorkerId = Annotated[str, Doc("The worker's id, as registering it answered", "01935b8e-7c3a-7000-8000-000000000001")]
ClaimVersion = Annotated[int, Doc("As the claim said; a claim that is no longer held is refused with `claim_lost`", 1)]
Lease = Annotated[float | None, Doc("Seconds that it is held from now; null: what the server says", 60)]


@dataclass(frozen=True, slots=True)
class Worker(ApiRecord):
    """An outside worker."""

    worker_id: str
    """Goes with everything that it says."""
    name: str
    handlers: list[str]
    task_lists: list[str]
    heartbeat_every_for: int
    """A sign of life at least so often, in milliseconds; after three missed ones it is shown as lost."""
    lease_for: int
    """How long a claim holds unless another length is asked for, in milliseconds. Renew every third of it."""


@dataclass(frozen=True, slots=True)
class ClaimedTask(ApiRecord):
    """A task that the worker holds, with all that it needs to work on it."""

    task_id: str
    claim_version: int
    """Goes with everything that is said about this task."""
    name: str
    payload: dict[str, Json]
    attempt: int
    """The number of this execution, from 1."""
    task_list: str
    lease_expires_at: Instant
    lease_for: int
    """Milliseconds that are left of the lease."""
    deadline_at: Instant | None
    """After that, nobody wants it any more."""
    checkpoint: Json
    """What earlier attempts left."""
    approval_decisions: list[dict[str, Json]]
    """The approvals that were given to the task so far, oldest first."""
    run_id: str | None
    step_id: str | None
    trace_id: str | None


@dataclass(frozen=True, slots=True)
class Claimed(ApiRecord):
    """What was claimed; empty: nothing was there in time."""

    tasks: list[ClaimedTask]


@dataclass(frozen=True, slots=True)
class ClaimState(ApiRecord):
    """How a claim stands."""

    task_id: str
    claim_version: int
    state: str
    """`held`, `canceled` (stop; there is nothing to settle) or `lost` (drop what was done)."""
    lease_expires_at: Instant | None
    lease_for: int
    """Milliseconds that are left of the lease."""
    cancel_requested: bool


@dataclass(frozen=True, slots=True)
class Beat(ApiRecord):
    """The worker is known to be alive; each claim that was named, in that order."""

    worker_id: str
    claims: list[ClaimState]


@dataclass(frozen=True, slots=True)
class Left(ApiRecord):
    """The worker is gone."""

    worker_id: str
    released: int
    """Tasks that it held, and that others can take now."""


@dataclass(frozen=True, slots=True)
class Taken(ApiRecord):
    """What was said is stored."""

    task_id: str
    state: str
    """The state of the task now."""


@dataclass(frozen=True, slots=True)
class HeldClaim(ApiRecord):
    """A claim to be held for another lease."""

    task_id: str
    claim_version: int


@dataclass(frozen=True, slots=True)
class NewLine(ApiRecord):
    """A line to be written about a task."""

    message: str
    level: str = "info"
    """`debug`, `info`, `success`, `warning` or `error`."""
    details: dict[str, Json] | None = None


class WorkApi(Protocol):
    """The worker protocol. Every word about a task is fenced by the worker's id and the claim version."""

    @contract.post("/workers", Scope.WORK, status=201, lists=True)
    async def register(
        self,
        name: Annotated[str, Doc("For people", "thumbnailer-7")],
        handlers: Annotated[Sequence[str], Doc("Names, short names or globs of what it handles", ["images.*"])],
        *,
        task_lists: Annotated[Sequence[str], Doc("The task lists that it serves")] = (DEFAULT_LIST,),
        concurrency: Annotated[int, Doc("Tasks that it handles at once")] = 1,
        heartbeat_every: Annotated[float, Doc("Seconds between its signs of life")] = 10.0,
        host: Annotated[str, Doc("Where it runs, for people")] = "outside",
        version: Annotated[str, Doc("Its own version, for people")] = "",
    ) -> Worker:
        """Make a worker known; each start of a process is a new one."""

    @contract.post("/workers/{worker_id}/beat", Scope.WORK, lists=True)
    async def beat(
        self,
        worker_id: WorkerId,
        *,
        claims: Annotated[Sequence[HeldClaim], Doc("Claims to be held for another lease")] = (),
        running: Annotated[int | None, Doc("Tasks in progress, for people")] = None,
        lease: Lease = None,
    ) -> Beat:
        """A sign of life, which also renews all claims that it names."""

    @contract.post("/workers/{worker_id}/leave", Scope.WORK, lists=True)
    async def leave(self, worker_id: WorkerId) -> Left:
        """The worker stops: what it holds is released for others."""

    @contract.post("/tasks/claim", Scope.WORK, lists=True)
    async def claim(
        self,
        worker_id: WorkerId,
        *,
        limit: Annotated[int, Doc("At most so many tasks, up to 1000")] = 1,
        wait_for: Annotated[float, Doc("Wait so many seconds for one, up to 60", 30)] = 0.0,
        lease: Lease = None,
        names: Annotated[Sequence[str] | None, Doc("Only these of the worker's handlers")] = None,
        task_lists: Annotated[Sequence[str] | None, Doc("Only these of the worker's task lists")] = None,
    ) -> Claimed:
        """Take tasks that the worker has handlers for; waits for some if asked to."""

    @contract.post("/tasks/{task_id}/heartbeat", Scope.WORK, lists=True)
    async def heartbeat(
        self, task_id: TaskId, worker_id: WorkerId, claim_version: ClaimVersion, *, lease: Lease = None
    ) -> ClaimState:
        """Hold the claim for another lease from now."""

    @contract.post("/tasks/{task_id}/progress", Scope.WORK, lists=True)
    async def progress(
        self,
        task_id: TaskId,
        worker_id: WorkerId,
        claim_version: ClaimVersion,
        *,
        fraction: Annotated[float | None, Doc("How much is done, from 0 to 1", 0.5)] = None,
        message: Annotated[str | None, Doc("What is being done", "half way")] = None,
        lease: Lease = None,
    ) -> ClaimState:
        """Say that the work gets on, which moves the progress deadline, and hold the claim."""

    @contract.post("/tasks/{task_id}/partial", Scope.WORK, lists=True)
    async def partial(
        self,
        task_id: TaskId,
        worker_id: WorkerId,
        claim_version: ClaimVersion,
        results: Annotated[dict[str, Json], Doc("Merged key by key with those before", {"pages": 3})],
    ) -> Taken:
        """Store partial results; whoever takes the task next is given them as its checkpoint."""

    @contract.post("/tasks/{task_id}/log", Scope.WORK, lists=True)
    async def log(
        self,
        task_id: TaskId,
        worker_id: WorkerId,
        claim_version: ClaimVersion,
        lines: Annotated[Sequence[NewLine], Doc("Up to 1000; sent twice, they stand twice", [{"message": "half done"}])],
    ) -> Taken:
        """Write lines about the task."""

    @contract.post("/tasks/{task_id}/complete", Scope.WORK, lists=True)
    async def complete(
        self,
        task_id: TaskId,
        worker_id: WorkerId,
        claim_version: ClaimVersion,
        *,
        result: Annotated[dict[str, Json] | None, Doc("Goes to whoever waits for it", {"thumbnails": 3})] = None,
    ) -> Taken:
        """The work is done."""

    @contract.post("/tasks/{task_id}/fail", Scope.WORK, lists=True)
    async def fail(
        self,
        task_id: TaskId,
        worker_id: WorkerId,
        claim_version: ClaimVersion,
        message: Annotated[str, Doc("What went wrong, for people", "the image is corrupt")],
        *,
        code: Annotated[str, Doc("Stable, for programs")] = "handler_error",
        retryable: Annotated[bool, Doc("False: no further attempt can help")] = True,
        after: Annotated[float | None, Doc("The next attempt after so many seconds; null: by the retry policy")] = None,
        kind: Annotated[str | None, Doc("The type of what was raised, for people")] = None,
        traceback: Annotated[str | None, Doc("Where it happened, for people")] = None,
    ) -> Taken:
        """The attempt failed: it is tried again by the task's retry policy, or not at all."""

    @contract.post("/tasks/{task_id}/wait", Scope.WORK, lists=True)
    async def wait(
        self,
        task_id: TaskId,
        worker_id: WorkerId,
        claim_version: ClaimVersion,
        seconds: Annotated[float, Doc("Due again after so many seconds", 300)],
        *,
        checkpoint: Annotated[Json, Doc("Given with the task then")] = None,
    ) -> Taken:
        """There is nothing to do for so long: the task is given up, and due again then."""

    @contract.post("/tasks/{task_id}/ask", Scope.WORK, lists=True)
    async def ask(
        self,
        task_id: TaskId,
        worker_id: WorkerId,
        claim_version: ClaimVersion,
        title: Annotated[str, Doc("The question, in a line", "Publish these pictures?")],
        *,
        context: Annotated[dict[str, Json] | None, Doc("What the decision is about")] = None,
        deciders: Annotated[Sequence[str], Doc("Who may decide; none: everybody who may operate")] = (),
        expires: Annotated[float | None, Doc("Seconds after which nobody need decide")] = None,
        checkpoint: Annotated[Json, Doc("Given with the task then")] = None,
    ) -> Taken:
        """A person has to decide: the task is given up, and due again with the decision once it is approved."""

    @contract.post("/tasks/{task_id}/hand-off", Scope.WORK, lists=True)
    async def hand_off(
        self,
        task_id: TaskId,
        worker_id: WorkerId,
        claim_version: ClaimVersion,
        external_job_id: Annotated[str, Doc("What the outside service calls the job", "job-81")],
        *,
        polling_interval_seconds: Annotated[float, Doc("Seconds between two polls")] = 60.0,
        progress_hint: Annotated[str | None, Doc("How far it is, for people")] = None,
        progress: Annotated[float | None, Doc("How much is done, from 0 to 1")] = None,
    ) -> Taken:
        """The work goes on in an outside service, where a specialist polls it; refused where no live server has one."""

    @contract.post("/tasks/{task_id}/release", Scope.WORK, lists=True)
    async def release(
        self,
        task_id: TaskId,
        worker_id: WorkerId,
        claim_version: ClaimVersion,
        *,
        reason: Annotated[str, Doc("Why")] = "released by its worker",
    ) -> Taken:
        """Give the task back unfinished; another takes it at once."""
