"""External jobs: work in external services that tasks wait for; list, poll now, cancel, and rebuild records."""

from __future__ import annotations

from typing import Annotated, Protocol

from treadle.api import contract
from treadle.api.contract import ApiRecord, Doc, Page
from treadle.api.tasks import Why
from treadle.api.view import Column, View, short
from treadle.api.wire import Instant
from treadle.model.access import Scope
from treadle.model.values import Json

JobId = Annotated[str, Doc("The job's id, or the id of its task", "01935b8e-7c3a-7000-8000-000000000000")]


class ExternalJob(ApiRecord, frozen=True):
    """A job in an external service, projected from its events."""

    id: str
    state: str
    """State of the task: `awaiting_external`, `completed`, `failed` or `canceled`."""
    run_id: str | None
    render_job_id: str
    """The task that waits for it."""
    declared_render_type_ref: str
    """The task's name."""
    specialist_ref: str
    scope: str | None
    external_job_id: str
    """The service's id of the job."""
    polling_interval_seconds: float
    progress_hint: str | None
    """The service's last progress message."""
    progress: float | None
    """A fraction from 0 to 1."""
    dispatched_at: Instant
    last_polled_at: Instant | None
    completed_at: Instant | None
    due_at: Instant | None
    """Time of the next poll."""
    deadline_at: Instant | None
    render_event_object_id: str | None
    """The produced object."""
    failure_detail: str | None
    error_code: str | None
    polls: int
    raised: int
    """Number of polls that raised."""
    raised_in_row: int
    last_error: str | None


class ExternalJobEvent(ApiRecord, frozen=True):
    """An event of a job."""

    kind: str
    """`external_production_dispatched`, `external_production_polled` or `external_production_resolved`."""
    number: int
    """Number of the poll."""
    at: Instant
    payload: dict[str, Json]


class ExternalJobDetail(ExternalJob, frozen=True):
    """Everything about one job."""

    events: list[ExternalJobEvent]
    """The dispatch, the last 16 polls, and the end."""
    why: Why
    """The reason for its task's state."""


class ExternalJobPage(Page, frozen=True):
    """Jobs, newest first."""

    jobs: list[ExternalJob]


class ExternalJobsRebuilt(Page, frozen=True):
    """Records that were compared with their events."""

    records: int
    changed: int
    """Records that differed from their events and were rebuilt."""


def _progress(job: ExternalJob) -> str:
    part = "" if job.progress is None else f"{job.progress:.0%} "
    return part + ((job.last_error if job.raised_in_row else None) or job.progress_hint or job.failure_detail or "")


def _last_error(job: ExternalJob) -> str | None:
    error = job.failure_detail or job.last_error
    return None if error is None else short(error, 300)


def _kept_events(job: ExternalJobDetail) -> list[str]:
    return [f"{event.at.isoformat()} {event.kind}" for event in job.events]


_BRIEF = (
    "id",
    "state",
    Column("name", "declared_render_type_ref"),
    Column("task_id", "render_job_id"),
    "run_id",
    "external_job_id",
    "progress",
    Column("progress_hint", "progress_hint"),
    "dispatched_at",
    "due_at",
    "completed_at",
    "polls",
    Column("error", _last_error, "text"),
)
View(
    ExternalJob,
    columns=(
        "id",
        "state",
        Column("specialist", "declared_render_type_ref"),
        Column("job", "external_job_id", spare=True, limit=30, link="/external-jobs/{id}"),
        Column("progress", _progress, spare=True, limit=46),
        "?polls",
        Column("raised", lambda job: job.raised_in_row or None, spare=True),
        "?error_code",
        "?dispatched_at",
        Column("last poll", "last_polled_at", spare=True),
        Column("next poll", lambda job: job.due_at if job.completed_at is None else None, "instant", spare=True),
    ),
    brief=_BRIEF,
    empty="No external jobs; --all also shows those that have ended.",
)
View(
    ExternalJobDetail,
    title="{declared_render_type_ref}",
    facts=(
        "state",
        Column("task", lambda job: f"{job.declared_render_type_ref} {job.render_job_id}"),
        "run_id",
        Column("specialist", lambda job: job.specialist_ref + ("" if job.scope is None else f" in the scope {job.scope}")),
        Column("job at the service", "external_job_id"),
        Column("progress", _progress),
        Column("interval", lambda job: f"{job.polling_interval_seconds:g} s"),
        Column("polls", lambda job: f"{job.polls}, {job.raised} raised, {job.raised_in_row} of these in a row"),
        "dispatched_at",
        "last_polled_at",
        Column("next poll", "due_at"),
        "deadline_at",
        Column("ended", "completed_at"),
        Column("produced", "render_event_object_id"),
        Column("failure", "failure_detail"),
        "error_code",
        "last_error",
        Column(
            "events",
            rows=View(
                ExternalJobEvent,
                columns=("at", Column("event", "kind"), Column("poll", "number"), Column("details", "payload", limit=80)),
            ),
        ),
    ),
    brief=(
        *_BRIEF,
        Column("why", "why.text"),
        "polling_interval_seconds",
        "raised_in_row",
        Column("events", _kept_events),
    ),
)


class ExternalJobsApi(Protocol):
    """Jobs in external services."""

    @contract.get("/external-jobs")
    async def list(
        self,
        *,
        every: Annotated[bool, Doc("Include ended ones")] = False,
        run_id: Annotated[str | None, Doc("Only this run")] = None,
        limit: Annotated[int, Doc("Page size, up to 1000", 50)] = 50,
        before: Annotated[str | None, Doc("`next_before` of the previous page")] = None,
    ) -> ExternalJobPage:
        """Running external jobs, newest first."""

    @contract.post("/external-jobs/rebuild", Scope.ADMIN)
    async def rebuild(
        self,
        *,
        limit: Annotated[int, Doc("Records per call, up to 1000", 500)] = 500,
        before: Annotated[str | None, Doc("`next_before` of the previous response")] = None,
    ) -> ExternalJobsRebuilt:
        """Rebuild records of jobs from their events, one page per call."""

    @contract.get("/external-jobs/{job_id}")
    async def get(self, job_id: JobId) -> ExternalJobDetail:
        """One job: its record, its kept events, and the reason for its state."""

    @contract.post("/external-jobs/{job_id}/poll", Scope.OPERATE)
    async def poll_now(self, job_id: JobId) -> ExternalJob:
        """Make the job due now, regardless of its interval; a worker polls it."""

    @contract.post("/external-jobs/{job_id}/cancel", Scope.OPERATE)
    async def cancel(self, job_id: JobId, *, reason: Annotated[str | None, Doc("Stored with the task")] = None) -> ExternalJob:
        """Cancel the task and tell the service to cancel the job."""
