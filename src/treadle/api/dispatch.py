"""Dispatch: GitHub issues as jobs for agents; handed out one by one, tried up to four times. See docs/reference/dispatch.md."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal, Protocol

from treadle.api import contract
from treadle.api.contract import ApiRecord, Doc
from treadle.api.wire import Instant
from treadle.model.access import Scope
from treadle.model.values import Json

DispatchedId = Annotated[str, Doc("The job's id", "01935b8e-7c3a-7000-8000-000000000000")]

STORAGE_ERROR = 500
"""What the specification of dispatch answers when the store has failed four times; all other calls answer 503, and at once."""


@dataclass(frozen=True, slots=True)
class IssueLabel(ApiRecord):
    """A label of an issue."""

    name: str


@dataclass(frozen=True, slots=True)
class IssueOwner(ApiRecord):
    """Whose repository it is."""

    login: str


@dataclass(frozen=True, slots=True)
class IssueRepository(ApiRecord):
    """The repository that an issue is about."""

    id: int
    name: str
    full_name: str
    """Owner and name: `weavers/loom`."""
    owner: IssueOwner
    clone_url: str
    default_branch: str


@dataclass(frozen=True, slots=True)
class IssueInstallation(ApiRecord):
    """The installation of the GitHub app through which an issue came."""

    id: int


@dataclass(frozen=True, slots=True)
class Issue(ApiRecord):
    """A GitHub issue. What GitHub has beside these fields is not kept."""

    id: int
    number: int
    title: str
    repository: IssueRepository
    body: str | None = None
    labels: list[IssueLabel] | None = None
    installation: IssueInstallation | None = None


@dataclass(frozen=True, slots=True)
class DispatchedJob(ApiRecord):
    """A job as it is now."""

    id: str
    status: Literal["pending", "running", "completed", "failed", "canceled"]
    issue: Issue
    attempts: int
    """Retries so far: 0 before and during the first execution."""
    last_attempt_at: Instant | None
    completed_at: Instant | None
    """When it completed or failed for good."""
    error: str | None
    """The last error; of a job that waits or runs again, why it does."""
    metadata: dict[str, Json]
    """What it was enqueued with, and `worker_id`: who had it last."""


@dataclass(frozen=True, slots=True)
class DispatchedJobPage(ApiRecord):
    """Jobs, newest first."""

    jobs: list[DispatchedJob]
    next_before: str | None
    """Pass it as `before` for the next page; null on the last one."""


@dataclass(frozen=True, slots=True)
class Dequeued(ApiRecord):
    """The next job, now running; null: there is none."""

    job: DispatchedJob | None


_EXAMPLE = {
    "id": 2001,
    "number": 17,
    "title": "The shuttle gets stuck",
    "labels": [{"name": "bug"}],
    "repository": {
        "id": 5,
        "name": "loom",
        "full_name": "weavers/loom",
        "owner": {"login": "weavers"},
        "clone_url": "git@example.org:weavers/loom.git",
        "default_branch": "main",
    },
}


class DispatchApi(Protocol):
    """Jobs of dispatch. Its four errors have the codes and statuses of its specification."""

    @contract.get("/dispatch/jobs", lists=True, problems=(STORAGE_ERROR,))
    async def list(
        self,
        *,
        status: Annotated[str | None, Doc("Only these: pending, running, completed, failed or canceled")] = None,
        limit: Annotated[int, Doc("At most so many, up to 1000", 50)] = 50,
        before: Annotated[str | None, Doc("The `next_before` of the page before")] = None,
    ) -> DispatchedJobPage:
        """Jobs, newest first."""

    @contract.post("/dispatch/jobs", Scope.WORK, status=201, lists=True, creates=True, problems=(STORAGE_ERROR,))
    async def enqueue(
        self,
        issue: Annotated[Issue, Doc("The issue", _EXAMPLE)],
        *,
        priority: Annotated[int, Doc("Smaller ones run first")] = 0,
        delay: Annotated[float | None, Doc("Not before so many seconds from now")] = None,
        metadata: Annotated[dict[str, Json] | None, Doc("Kept with the job")] = None,
        unique_key: Annotated[str | None, Doc("While a job with this key has not ended, it stands for this one too")] = None,
        idempotency_key: str | None = None,
    ) -> DispatchedJob:
        """Store a job for an issue."""

    @contract.get("/dispatch/jobs/{job_id}", lists=True, problems=(STORAGE_ERROR,))
    async def get(self, job_id: DispatchedId) -> DispatchedJob:
        """A job, whatever has become of it. `TASK_NOT_FOUND` (404) if there is none."""

    @contract.post("/dispatch/dequeue", Scope.WORK, lists=True, problems=(STORAGE_ERROR,))
    async def dequeue(self, worker_id: Annotated[str, Doc("Who asks", "worker-1")]) -> Dequeued:
        """The next job, which this server holds for the worker until it says what became of it, an hour at most.

        `WORKER_UNAVAILABLE` (503) when the server drains, and when as many jobs run as may: ask again later.
        """

    @contract.post("/dispatch/jobs/{job_id}/status", Scope.WORK, lists=True, problems=(STORAGE_ERROR,))
    async def update_status(
        self,
        job_id: DispatchedId,
        worker_id: Annotated[str, Doc("Who has it; if another has it by now, it is refused with `claim_lost`", "worker-1")],
        status: Annotated[str, Doc("completed, failed or pending (given back)", "completed")],
        *,
        error: Annotated[str | None, Doc("Why it failed")] = None,
        result: Annotated[dict[str, Json] | None, Doc("What came of it", {"branch": "fix-17"})] = None,
        retry: Annotated[bool, Doc("Whether a failed one is tried again by its policy")] = False,
    ) -> DispatchedJob:
        """Say what became of a job."""

    @contract.post("/dispatch/jobs/{job_id}/retry", Scope.OPERATE, lists=True, problems=(STORAGE_ERROR,))
    async def retry(self, job_id: DispatchedId) -> DispatchedJob:
        """Make a failed job pending again, due after 1, 2 or 4 seconds; `MAX_RETRIES_EXCEEDED` (400) after the third time."""

    @contract.post("/dispatch/jobs/{job_id}/cancel", Scope.OPERATE, lists=True, problems=(STORAGE_ERROR,))
    async def cancel(
        self, job_id: DispatchedId, *, reason: Annotated[str | None, Doc("Kept with the job")] = None
    ) -> DispatchedJob:
        """End a job that has not ended, whoever holds it."""
