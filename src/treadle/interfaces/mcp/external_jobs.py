"""Tools for jobs in external services: list, show, poll now, cancel."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from treadle.api.contract import ApiRecord, Doc, record
from treadle.api.external_jobs import ExternalJob, JobId
from treadle.api.wire import Instant, record_of
from treadle.interfaces.mcp.request_context import RequestContext
from treadle.interfaces.mcp.tool import tool
from treadle.interfaces.mcp.truncate import PAGE, Before, Limit, line, page_size
from treadle.model.access import Scope


@record
class JobLine(ApiRecord):
    """Summary of an external job."""

    id: str
    state: str
    """`awaiting_external`, `completed`, `failed` or `canceled`."""
    name: str
    """The task's name."""
    task_id: str
    run_id: str | None
    external_job_id: str
    """The service's id of the job."""
    progress: float | None
    """A fraction from 0 to 1."""
    progress_hint: str | None
    dispatched_at: Instant
    due_at: Instant | None
    """Time of the next poll."""
    completed_at: Instant | None
    polls: int
    error: str | None


@record
class JobLines(ApiRecord):
    """Jobs, newest first."""

    jobs: list[JobLine]
    next_before: str | None
    """Pass it as `before` for the next page; null on the last page."""


@record
class JobView(JobLine):
    """One job."""

    why: str
    """The reason for its task's state."""
    polling_interval_seconds: float
    raised_in_row: int
    """Consecutive polls that raised."""
    events: list[str]
    """The dispatch, the last polls and the end, one line each."""


def job_line(job: ExternalJob) -> JobLine:
    """The summary of a job."""
    return record_of(JobLine, job, **_brief(job))


def _brief(job: ExternalJob) -> dict[str, Any]:
    return {
        "name": job.declared_render_type_ref,
        "task_id": job.render_job_id,
        "progress_hint": line(job.progress_hint),
        "error": line(job.failure_detail or job.last_error),
    }


@tool()
async def external_job_list(
    context: RequestContext,
    every: Annotated[bool, Doc("Include ended jobs")] = False,
    run_id: Annotated[str | None, Doc("Only this run")] = None,
    limit: Limit = PAGE,
    before: Before = None,
) -> JobLines:
    """List running external jobs, newest first."""
    page = await context.api.external_jobs.list(every=every, run_id=run_id, limit=page_size(limit), before=before)
    return JobLines([job_line(job) for job in page.jobs], page.next_before)


@tool()
async def external_job_show(context: RequestContext, job_id: JobId) -> JobView:
    """Show one external job: progress, kept events, and the reason for its task's state."""
    job = await context.api.external_jobs.get(job_id)
    return record_of(
        JobView,
        job,
        **_brief(job),
        why=line(job.why.text) or "",
        events=[f"{each.at.isoformat()} {each.kind}" for each in job.events],
    )


@tool(Scope.OPERATE, ends=True, repeatable=True)
async def external_job_manage(
    context: RequestContext,
    job_id: JobId,
    action: Annotated[Literal["poll", "cancel"], Doc("The action", "poll")],
    reason: Annotated[str | None, Doc("For `cancel`: stored with the task")] = None,
) -> JobLine:
    """Poll a job now, or cancel its task and the job in the external service."""
    jobs = context.api.external_jobs
    return job_line(await (jobs.poll_now(job_id) if action == "poll" else jobs.cancel(job_id, reason=reason)))


TOOLS = (external_job_list, external_job_show, external_job_manage)
