"""Dispatch: GitHub issues as jobs for agents, handed out one at a time with up to four attempts. See docs/reference/dispatch.md."""

from __future__ import annotations

from typing import Annotated, Literal, Protocol

from treadle.api import contract
from treadle.api.contract import ApiRecord, Doc, Page
from treadle.api.options import SECONDS
from treadle.api.tasks import TaskLogLine
from treadle.api.view import Column, View
from treadle.api.wire import Instant
from treadle.model.access import Scope
from treadle.model.values import Json

DispatchedId = Annotated[str, Doc("The job's id", "01935b8e-7c3a-7000-8000-000000000000")]

STORAGE_ERROR = 500
"""The status required by the dispatch specification after the store has failed four times; other calls return 503 immediately."""


class IssueLabel(ApiRecord, frozen=True, forbid_unknown_fields=True):
    """A label of an issue."""

    name: str


class IssueOwner(ApiRecord, frozen=True, forbid_unknown_fields=True):
    """The owner of the repository."""

    login: str


class IssueRepository(ApiRecord, frozen=True, forbid_unknown_fields=True):
    """The repository of an issue."""

    id: int
    name: str
    full_name: str
    """Owner and name: `weavers/loom`."""
    owner: IssueOwner
    clone_url: str
    default_branch: str


class IssueInstallation(ApiRecord, frozen=True, forbid_unknown_fields=True):
    """The installation of the GitHub app that delivered an issue."""

    id: int


class Issue(ApiRecord, frozen=True, forbid_unknown_fields=True):
    """A GitHub issue. Other fields of GitHub are not stored."""

    id: int
    number: int
    title: str
    repository: IssueRepository
    body: str | None = None
    labels: list[IssueLabel] | None = None
    installation: IssueInstallation | None = None


class DispatchedJob(ApiRecord, frozen=True):
    """A job and its state."""

    id: str
    status: Literal["pending", "running", "completed", "failed", "canceled"]
    issue: Issue
    attempts: int
    """Retries so far: 0 before and during the first attempt."""
    last_attempt_at: Instant | None
    completed_at: Instant | None
    """Time at which it completed or failed permanently."""
    error: str | None
    """The error of a failed or canceled job; a retry clears it."""
    metadata: dict[str, Json]
    """The metadata it was enqueued with, and `worker_id`, its last worker."""


class DispatchedJobPage(Page, frozen=True):
    """Jobs, newest first."""

    jobs: list[DispatchedJob]


View(
    DispatchedJob,
    title="{issue.title}  {status}  {id}",
    columns=(
        "id",
        Column("status", kind="state"),
        Column("issue", lambda job: f"{job.issue.repository.full_name}#{job.issue.number}"),
        Column("title", "issue.title", limit=60),
        "attempts",
        Column("last attempt", "last_attempt_at"),
        Column("error", spare=True, limit=60),
    ),
    facts=(
        Column("issue", lambda job: f"{job.issue.repository.full_name}#{job.issue.number}"),
        "attempts",
        Column("last attempt", "last_attempt_at"),
        "completed_at",
        "error",
        Column("labels", lambda job: [label.name for label in job.issue.labels or ()]),
        Column("metadata", kind="json"),
        Column("body", "issue.body"),
    ),
    empty="No jobs. `treadle dispatch enqueue @issue.json` creates one.",
    changed="{id} is {status} now",
)


class DispatchedJobLog(ApiRecord, frozen=True):
    """The log lines of a job, oldest first."""

    lines: list[TaskLogLine]


class Dequeued(ApiRecord, frozen=True):
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
    """Dispatch jobs. The four errors have the codes and status codes of the dispatch specification."""

    @contract.get("/dispatch/jobs", lists=True, problems=(STORAGE_ERROR,))
    async def list(
        self,
        *,
        status: Annotated[str | None, Doc("Only this status: pending, running, completed, failed or canceled")] = None,
        limit: Annotated[int, Doc("Page size, up to 1000", 50)] = 50,
        before: Annotated[str | None, Doc("`next_before` of the previous page")] = None,
    ) -> DispatchedJobPage:
        """Jobs, newest first."""

    @contract.post("/dispatch/jobs", Scope.ENQUEUE, status=201, lists=True, creates=True, problems=(STORAGE_ERROR,))
    async def enqueue(
        self,
        issue: Annotated[Issue, Doc("The issue", _EXAMPLE)],
        *,
        priority: Annotated[int, Doc("Smaller numbers run first")] = 0,
        delay: Annotated[float | None, Doc("Earliest start, in seconds from now", unit=SECONDS)] = None,
        metadata: Annotated[dict[str, Json] | None, Doc("Stored with the job")] = None,
        unique_key: Annotated[str | None, Doc("If a live job already has this key, return it instead of creating another")] = None,
        idempotency_key: str | None = None,
    ) -> DispatchedJob:
        """Store a job for an issue."""

    @contract.get("/dispatch/jobs/{job_id}", lists=True, problems=(STORAGE_ERROR,))
    async def get(self, job_id: DispatchedId) -> DispatchedJob:
        """A job in any state; `TASK_NOT_FOUND` (404) if there is none."""

    @contract.get("/dispatch/jobs/{job_id}/logs", lists=True, problems=(STORAGE_ERROR,))
    async def logs(
        self, job_id: DispatchedId, *, limit: Annotated[int, Doc("Maximum number of lines", 100)] = 100
    ) -> DispatchedJobLog:
        """The log lines of a job, oldest first: the ends of its attempts, and lines of its handler."""

    @contract.post("/dispatch/dequeue", Scope.WORK, lists=True, problems=(STORAGE_ERROR,))
    async def dequeue(self, worker_id: Annotated[str, Doc("The worker's id", "worker-1")]) -> Dequeued:
        """Take the next job. The server holds it for the worker until the worker reports the result, at most one hour.

        `WORKER_UNAVAILABLE` (503) while the server drains or the maximum number of jobs is running: retry later.
        """

    @contract.post("/dispatch/jobs/{job_id}/status", Scope.WORK, lists=True, problems=(STORAGE_ERROR,))
    async def update_status(
        self,
        job_id: DispatchedId,
        worker_id: Annotated[
            str, Doc("The worker that holds the job; refused with `claim_lost` if another worker holds it now", "worker-1")
        ],
        status: Annotated[str, Doc("completed, failed or pending (returned)", "completed")],
        *,
        error: Annotated[str | None, Doc("Reason of the failure")] = None,
        result: Annotated[dict[str, Json] | None, Doc("The result", {"branch": "fix-17"})] = None,
        retry: Annotated[bool, Doc("Whether the job's policy retries the failure")] = False,
    ) -> DispatchedJob:
        """Report the result of a job."""

    @contract.post("/dispatch/jobs/{job_id}/retry", Scope.OPERATE, lists=True, problems=(STORAGE_ERROR,))
    async def retry(self, job_id: DispatchedId) -> DispatchedJob:
        """Make a failed job pending again, due after 1, 2 or 4 seconds; `MAX_RETRIES_EXCEEDED` (400) after the third retry."""

    @contract.post("/dispatch/jobs/{job_id}/cancel", Scope.OPERATE, lists=True, problems=(STORAGE_ERROR,))
    async def cancel(
        self, job_id: DispatchedId, *, reason: Annotated[str | None, Doc("Stored with the job")] = None
    ) -> DispatchedJob:
        """Cancel a live job, even if a worker holds it."""
