"""The worker protocol: workers in any language register, claim tasks, renew leases and report results. See docs/explanation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Protocol

from treadle.api import contract
from treadle.api.contract import ApiRecord, Doc
from treadle.api.tasks import TaskId
from treadle.api.wire import Instant
from treadle.model.access import Scope
from treadle.model.names import DEFAULT_LIST
from treadle.model.values import Json

WorkerId = Annotated[str, Doc("The worker's id, as returned by `register`", "01935b8e-7c3a-7000-8000-000000000001")]
ClaimVersion = Annotated[int, Doc("Version of the claim; a claim that is no longer held is refused with `claim_lost`", 1)]
Lease = Annotated[float | None, Doc("Lease in seconds from now; null: the server's default", 60)]


class Worker(ApiRecord, frozen=True):
    """A remote worker."""

    worker_id: str
    """Pass it with every call."""
    name: str
    handlers: list[str]
    task_lists: list[str]
    heartbeat_every_for: int
    """Heartbeat interval in milliseconds; after three missed heartbeats the worker is `lost`."""
    lease_for: int
    """Default lease in milliseconds. Renew after a third of it."""


class HeldClaim(ApiRecord, frozen=True, forbid_unknown_fields=True):
    """A claim, such as one to renew."""

    task_id: str
    claim_version: int
    """Pass it with every call about this task."""


class ClaimedTask(HeldClaim, frozen=True, forbid_unknown_fields=False):
    """A claimed task, with everything needed to work on it."""

    name: str
    payload: dict[str, Json]
    attempt: int
    """Number of this attempt, from 1."""
    idempotency_key: str
    """The same for all attempts of the task: pass it to services that deduplicate."""
    task_list: str
    lease_expires_at: Instant
    lease_for: int
    """Remaining lease in milliseconds."""
    deadline_at: Instant | None
    """After this time the result is not needed any more."""
    checkpoint: Json
    """Checkpoint of earlier attempts."""
    approval_decisions: list[dict[str, Json]]
    """Decisions of the task's approvals, oldest first."""
    run_id: str | None
    step_id: str | None
    trace_id: str | None


class Claimed(ApiRecord, frozen=True):
    """Claimed tasks; empty: none became available in time."""

    tasks: list[ClaimedTask]


class ClaimState(HeldClaim, frozen=True, forbid_unknown_fields=False):
    """State of a claim."""

    state: str
    """`held`, `canceled` (stop; there is nothing to settle) or `lost` (discard the work)."""
    lease_expires_at: Instant | None
    lease_for: int
    """Remaining lease in milliseconds."""
    cancel_requested: bool


class Heartbeat(ApiRecord, frozen=True):
    """The heartbeat was recorded; the states of the named claims, in order."""

    worker_id: str
    claims: list[ClaimState]


class WorkerLeft(ApiRecord, frozen=True):
    """The worker has left."""

    worker_id: str
    released: int
    """Its claims, which were released."""


class ReportAccepted(ApiRecord, frozen=True):
    """The report was stored."""

    task_id: str
    state: str
    """The current state of the task."""


class NewLogLine(ApiRecord, frozen=True, forbid_unknown_fields=True):
    """A new log line of a task."""

    message: str
    level: str = "info"
    """`debug`, `info`, `success`, `warning` or `error`."""
    details: dict[str, Json] | None = None


class WorkApi(Protocol):
    """The worker protocol. Every report about a task is fenced by the worker's id and the claim version."""

    @contract.post("/workers", Scope.WORK, status=201, lists=True)
    async def register(
        self,
        name: Annotated[str, Doc("For people", "thumbnailer-7")],
        handlers: Annotated[Sequence[str], Doc("Names, short names or globs of its handlers", ["images.*"])],
        *,
        task_lists: Annotated[Sequence[str], Doc("The task lists that it serves")] = (DEFAULT_LIST,),
        concurrency: Annotated[int, Doc("Number of tasks it runs concurrently")] = 1,
        heartbeat_every: Annotated[float, Doc("Seconds between its heartbeats")] = 10.0,
        host: Annotated[str, Doc("Its host, for people")] = "outside",
        version: Annotated[str, Doc("Its version, for people")] = "",
        release: Annotated[str, Doc("The release of the application that it runs, by which metrics are kept", "2026-11-20.3")] = "",
    ) -> Worker:
        """Register a worker; each start of a process is a new worker."""

    @contract.post("/workers/{worker_id}/beat", Scope.WORK, lists=True)
    async def beat(
        self,
        worker_id: WorkerId,
        *,
        claims: Annotated[Sequence[HeldClaim], Doc("Claims to renew")] = (),
        running: Annotated[int | None, Doc("Number of running tasks, for people")] = None,
        lease: Lease = None,
    ) -> Heartbeat:
        """Send a heartbeat, which also renews the named claims."""

    @contract.post("/workers/{worker_id}/leave", Scope.WORK, lists=True)
    async def leave(self, worker_id: WorkerId) -> WorkerLeft:
        """Stop a worker: its claims are released."""

    @contract.post("/tasks/claim", Scope.WORK, lists=True)
    async def claim(
        self,
        worker_id: WorkerId,
        *,
        limit: Annotated[int, Doc("Maximum number of tasks, up to 1000")] = 1,
        wait_for: Annotated[float, Doc("Seconds to wait for a task, up to 60", 30)] = 0.0,
        lease: Lease = None,
        names: Annotated[Sequence[str] | None, Doc("Only these of the worker's handlers")] = None,
        task_lists: Annotated[Sequence[str] | None, Doc("Only these of the worker's task lists")] = None,
    ) -> Claimed:
        """Claim tasks that the worker has handlers for; optionally waits for some."""

    @contract.post("/tasks/{task_id}/heartbeat", Scope.WORK, lists=True)
    async def heartbeat(
        self, task_id: TaskId, worker_id: WorkerId, claim_version: ClaimVersion, *, lease: Lease = None
    ) -> ClaimState:
        """Renew the lease of a claim from now."""

    @contract.post("/tasks/{task_id}/progress", Scope.WORK, lists=True)
    async def progress(
        self,
        task_id: TaskId,
        worker_id: WorkerId,
        claim_version: ClaimVersion,
        *,
        fraction: Annotated[float | None, Doc("Progress, from 0 to 1", 0.5)] = None,
        message: Annotated[str | None, Doc("Current activity", "half way")] = None,
        lease: Lease = None,
    ) -> ClaimState:
        """Report progress, which extends the progress deadline and renews the lease."""

    @contract.post("/tasks/{task_id}/partial", Scope.WORK, lists=True)
    async def partial(
        self,
        task_id: TaskId,
        worker_id: WorkerId,
        claim_version: ClaimVersion,
        results: Annotated[dict[str, Json], Doc("Merged by key with earlier partial results", {"pages": 3})],
    ) -> ReportAccepted:
        """Store partial results; the next attempt receives them as its checkpoint."""

    @contract.post("/tasks/{task_id}/log", Scope.WORK, lists=True)
    async def log(
        self,
        task_id: TaskId,
        worker_id: WorkerId,
        claim_version: ClaimVersion,
        lines: Annotated[
            Sequence[NewLogLine], Doc("Up to 1000 lines; repeated calls store them again", [{"message": "half done"}])
        ],
    ) -> ReportAccepted:
        """Write log lines of the task."""

    @contract.post("/tasks/{task_id}/complete", Scope.WORK, lists=True)
    async def complete(
        self,
        task_id: TaskId,
        worker_id: WorkerId,
        claim_version: ClaimVersion,
        *,
        result: Annotated[dict[str, Json] | None, Doc("The result", {"thumbnails": 3})] = None,
    ) -> ReportAccepted:
        """Complete the task."""

    @contract.post("/tasks/{task_id}/fail", Scope.WORK, lists=True)
    async def fail(
        self,
        task_id: TaskId,
        worker_id: WorkerId,
        claim_version: ClaimVersion,
        message: Annotated[str, Doc("The error message", "the image is corrupt")],
        *,
        code: Annotated[str, Doc("A stable error code")] = "handler_error",
        retryable: Annotated[bool, Doc("False: do not retry")] = True,
        after: Annotated[float | None, Doc("Delay of the next attempt in seconds; null: by the retry policy")] = None,
        kind: Annotated[str | None, Doc("Class of the exception, by which the policy selects", "billing.CardDeclined")] = None,
        traceback: Annotated[str | None, Doc("Traceback, for people")] = None,
    ) -> ReportAccepted:
        """Fail the attempt; the task's retry policy decides about another one."""

    @contract.post("/tasks/{task_id}/wait", Scope.WORK, lists=True)
    async def wait(
        self,
        task_id: TaskId,
        worker_id: WorkerId,
        claim_version: ClaimVersion,
        seconds: Annotated[float, Doc("Delay in seconds", 300)],
        *,
        checkpoint: Annotated[Json, Doc("Returned with the next claim")] = None,
    ) -> ReportAccepted:
        """Release the task; it is due again after a delay."""

    @contract.post("/tasks/{task_id}/ask", Scope.WORK, lists=True)
    async def ask(
        self,
        task_id: TaskId,
        worker_id: WorkerId,
        claim_version: ClaimVersion,
        title: Annotated[str, Doc("The question, in one line", "Publish these pictures?")],
        *,
        context: Annotated[dict[str, Json] | None, Doc("Information for the decision")] = None,
        deciders: Annotated[Sequence[str], Doc("Names of the deciders; empty: anybody with the scope `approve`")] = (),
        expires: Annotated[float | None, Doc("Seconds after which the approval expires")] = None,
        checkpoint: Annotated[Json, Doc("Returned with the next claim")] = None,
    ) -> ReportAccepted:
        """Request an approval and release the task; it is due again with the decision once it is approved."""

    @contract.post("/tasks/{task_id}/hand-off", Scope.WORK, lists=True)
    async def hand_off(
        self,
        task_id: TaskId,
        worker_id: WorkerId,
        claim_version: ClaimVersion,
        external_job_id: Annotated[str, Doc("The external service's id of the job", "job-81")],
        *,
        polling_interval_seconds: Annotated[float, Doc("Seconds between two polls")] = 60.0,
        progress_hint: Annotated[str | None, Doc("Progress message, for people")] = None,
        progress: Annotated[float | None, Doc("Progress, from 0 to 1")] = None,
    ) -> ReportAccepted:
        """Hand the work off to an external service, where a specialist polls it; refused if no live worker has that specialist."""

    @contract.post("/tasks/{task_id}/release", Scope.WORK, lists=True)
    async def release(
        self,
        task_id: TaskId,
        worker_id: WorkerId,
        claim_version: ClaimVersion,
        *,
        reason: Annotated[str, Doc("Reason")] = "released by its worker",
    ) -> ReportAccepted:
        """Release the task unfinished; another worker can claim it immediately, or if it was claimed before, after a second."""
