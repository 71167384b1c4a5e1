"""Outside jobs: work in outside services that tasks wait for; look, poll now, cancel, and make the records again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Protocol

from treadle.api import contract
from treadle.api.contract import ApiRecord, Doc
from treadle.api.tasks import Why
from treadle.api.wire import Instant
from treadle.model.access import Scope
from treadle.model.values import Json

JobId = Annotated[str, Doc("The job's id, or that of its task", "01935b8e-7c3a-7000-8000-000000000000")]


@dataclass(frozen=True, slots=True)
class ExternalJob(ApiRecord):
    """A job in an outside service, as its events tell of it."""

    id: str
    state: str
    """The task's: `awaiting_external`, or how it ended: `completed`, `failed` or `canceled`."""
    run_id: str | None
    render_job_id: str
    """The task that waits for it."""
    declared_render_type_ref: str
    """The task's name."""
    specialist_ref: str
    scope: str | None
    external_job_id: str
    """The service's name of the job."""
    polling_interval_seconds: float
    progress_hint: str | None
    """What the service said last, for people."""
    progress: float | None
    """A fraction from 0 to 1."""
    dispatched_at: Instant
    last_polled_at: Instant | None
    completed_at: Instant | None
    due_at: Instant | None
    """The next poll."""
    deadline_at: Instant | None
    render_event_object_id: str | None
    """What it produced."""
    failure_detail: str | None
    error_code: str | None
    polls: int
    raised: int
    """Polls that raised."""
    raised_in_row: int
    last_error: str | None


@dataclass(frozen=True, slots=True)
class ExternalJobEvent(ApiRecord):
    """An event of a job."""

    kind: str
    """`external_production_dispatched`, `external_production_polled` or `external_production_resolved`."""
    number: int
    """Polls so far."""
    at: Instant
    payload: dict[str, Json]


@dataclass(frozen=True, slots=True)
class ExternalJobDetail(ExternalJob):
    """Everything about one job."""

    events: list[ExternalJobEvent]
    """The dispatch, the last 16 polls, the end."""
    why: Why
    """Why its task is where it is."""


@dataclass(frozen=True, slots=True)
class ExternalJobPage(ApiRecord):
    """Jobs, newest first."""

    jobs: list[ExternalJob]
    next_before: str | None
    """Pass it as `before` for the next page; null on the last one."""


@dataclass(frozen=True, slots=True)
class ExternalJobsRebuilt(ApiRecord):
    """Records that were compared with their events."""

    records: int
    changed: int
    """Those that were not as their events say, and are now."""
    next_before: str | None
    """Pass it as `before` to go on; null at the end."""


class ExternalJobsApi(Protocol):
    """Jobs in outside services."""

    @contract.get("/external-jobs")
    async def list(
        self,
        *,
        every: Annotated[bool, Doc("Those that have ended too")] = False,
        run_id: Annotated[str | None, Doc("Only of this run")] = None,
        limit: Annotated[int, Doc("At most so many, up to 1000", 50)] = 50,
        before: Annotated[str | None, Doc("The `next_before` of the page before")] = None,
    ) -> ExternalJobPage:
        """Jobs that outside services work on, newest first."""

    @contract.post("/external-jobs/rebuild", Scope.ADMIN)
    async def rebuild(
        self,
        *,
        limit: Annotated[int, Doc("So many records at a time, up to 1000", 500)] = 500,
        before: Annotated[str | None, Doc("The `next_before` of the answer before")] = None,
    ) -> ExternalJobsRebuilt:
        """Make records of jobs from their events again, a page at a time."""

    @contract.get("/external-jobs/{job_id}")
    async def get(self, job_id: JobId) -> ExternalJobDetail:
        """Everything about one job: its record, the events that are kept, and what it waits for."""

    @contract.post("/external-jobs/{job_id}/poll", Scope.OPERATE)
    async def poll_now(self, job_id: JobId) -> ExternalJob:
        """Make the job due now, whatever its interval says; a worker polls it."""

    @contract.post("/external-jobs/{job_id}/cancel", Scope.OPERATE)
    async def cancel(self, job_id: JobId, *, reason: Annotated[str | None, Doc("Kept with the task")] = None) -> ExternalJob:
        """End the task, and have the service told that the job is not wanted any more."""
