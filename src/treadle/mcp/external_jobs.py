"""Tools for jobs in outside services: look, poll now, cancel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from treadle.api.contract import ApiRecord, Doc
from treadle.api.external_jobs import ExternalJob, JobId
from treadle.api.wire import Instant
from treadle.mcp.request_context import RequestContext
from treadle.mcp.tool import tool
from treadle.mcp.truncate import PAGE, Before, Limit, line, page_size
from treadle.model.access import Scope


@dataclass(frozen=True, slots=True)
class JobLine(ApiRecord):
    """An outside job in brief."""

    id: str
    state: str
    """`awaiting_external`, or how it ended: `completed`, `failed` or `canceled`."""
    name: str
    """The task's name."""
    task_id: str
    run_id: str | None
    external_job_id: str
    """The service's name of the job."""
    progress: float | None
    """A fraction from 0 to 1."""
    progress_hint: str | None
    dispatched_at: Instant
    due_at: Instant | None
    """The next poll."""
    completed_at: Instant | None
    polls: int
    error: str | None


@dataclass(frozen=True, slots=True)
class JobLines(ApiRecord):
    """Jobs, newest first."""

    jobs: list[JobLine]
    next_before: str | None
    """Pass it as `before` for the next page; null on the last one."""


@dataclass(frozen=True, slots=True)
class JobView(JobLine):
    """One job."""

    why: str
    """Why its task is where it is."""
    polling_interval_seconds: float
    raised_in_row: int
    """Polls that raised, since the last that did not."""
    events: list[str]
    """The dispatch, the last polls, the end: each in a line."""


def job_line(job: ExternalJob) -> JobLine:
    """The job in brief."""
    return JobLine(
        job.id,
        job.state,
        job.declared_render_type_ref,
        job.render_job_id,
        job.run_id,
        job.external_job_id,
        job.progress,
        line(job.progress_hint),
        job.dispatched_at,
        job.due_at,
        job.completed_at,
        job.polls,
        line(job.failure_detail or job.last_error),
    )


@tool()
async def external_job_list(
    desk: RequestContext,
    every: Annotated[bool, Doc("Those that have ended too")] = False,
    run_id: Annotated[str | None, Doc("Only of this run")] = None,
    limit: Limit = PAGE,
    before: Before = None,
) -> JobLines:
    """Jobs that outside services work on, newest first."""
    page = await desk.api.external_jobs.list(every=every, run_id=run_id, limit=page_size(limit), before=before)
    return JobLines([job_line(job) for job in page.jobs], page.next_before)


@tool()
async def external_job_show(desk: RequestContext, job_id: JobId) -> JobView:
    """One outside job: how far it is, the events that are kept, and what its task waits for."""
    job = await desk.api.external_jobs.get(job_id)
    brief = job_line(job)
    return JobView(
        brief.id,
        brief.state,
        brief.name,
        brief.task_id,
        brief.run_id,
        brief.external_job_id,
        brief.progress,
        brief.progress_hint,
        brief.dispatched_at,
        brief.due_at,
        brief.completed_at,
        brief.polls,
        brief.error,
        why=line(job.why.text) or "",
        polling_interval_seconds=job.polling_interval_seconds,
        raised_in_row=job.raised_in_row,
        events=[f"{each.at.isoformat()} {each.kind}" for each in job.events],
    )


@tool(Scope.OPERATE, ends=True, repeatable=True)
async def external_job_manage(
    desk: RequestContext,
    job_id: JobId,
    action: Annotated[Literal["poll", "cancel"], Doc("What to do", "poll")],
    reason: Annotated[str | None, Doc("To cancel: kept with the task")] = None,
) -> JobLine:
    """Have a job polled now, or end its task and have the service told that it is not wanted any more."""
    jobs = desk.api.external_jobs
    return job_line(await (jobs.poll_now(job_id) if action == "poll" else jobs.cancel(job_id, reason=reason)))


TOOLS = (external_job_list, external_job_show, external_job_manage)
