"""`treadle external ...`: jobs in external services."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from treadle.api.view import short
from treadle.interfaces.cli.command import argument, option
from treadle.interfaces.cli.output.format import ago, facts, grid, ms, plain, state, when
from treadle.interfaces.cli.output.messages import tell_note
from treadle.interfaces.cli.session import Session
from treadle.model.clock import as_text

if TYPE_CHECKING:
    from datetime import datetime

    from rich.console import RenderableType

    from treadle.api.external_jobs import ExternalJob, ExternalJobDetail

Job = Annotated[str, argument(metavar="ID", help="The job's id, or that of its task")]

_PAGE = 50


async def list_jobs(
    session: Session,
    every: Annotated[bool, option("--all", help="Also show jobs that have ended")] = False,
    run_id: Annotated[str | None, option("--run", metavar="ID", help="Only of this run")] = None,
    limit: Annotated[int, option(help="Maximum number, up to 1000")] = _PAGE,
    before: Annotated[str | None, option(metavar="ID", help="Next page: only jobs older than this one")] = None,
) -> None:
    """List running jobs in external services, newest first."""
    async with session.api() as api:
        page = await api.external_jobs.list(every=every, run_id=run_id, limit=limit, before=before)
        now = (await api.system.time()).now
    empty = "No external jobs; --all also shows those that have ended."
    session.show_page(page, page.jobs, empty, lambda: _table(page.jobs, now), before=page.next_before)


async def show(session: Session, job_id: Job) -> None:
    """Show one job: its record and its stored events."""
    async with session.api() as api:
        found = await api.external_jobs.get(job_id)
        now = (await api.system.time()).now
    session.show(found, lambda: _one(found, now))


async def poll_now(session: Session, job_id: Job) -> None:
    """Make the job due now, regardless of its interval; a worker polls it."""
    async with session.api() as api:
        done = await api.external_jobs.poll_now(job_id)
    session.show(done, lambda: plain(f"The job {done.external_job_id} is due now."))


async def cancel(
    session: Session,
    job_id: Job,
    reason: Annotated[str | None, option(help="Reason, stored with the task")] = None,
) -> None:
    """Cancel the task, and have a worker cancel the job at the service."""
    async with session.api() as api:
        done = await api.external_jobs.cancel(job_id, reason=reason)
    session.show(done, lambda: plain(f"The job {done.external_job_id} is canceled; a worker notifies its service."))


async def rebuild(session: Session) -> None:
    """Rebuild every job's record from its events; `store verify` reports whether that is needed."""
    records = changed = 0
    before: str | None = None
    async with session.api() as api:
        while True:
            page = await api.external_jobs.rebuild(before=before)
            records, changed, before = records + page.records, changed + page.changed, page.next_before
            if before is None:
                break
            if not session.json:
                tell_note(f"{records} record(s) so far")
    session.show({"records": records, "changed": changed}, lambda: plain(f"{records} record(s), {changed} of them rebuilt."))


def _progress(job: ExternalJob) -> str:
    part = "" if job.progress is None else f"{job.progress:.0%} "
    problem = job.last_error if job.raised_in_row else None
    return part + short(problem or job.progress_hint or job.failure_detail or "", 40)


def _table(jobs: list[ExternalJob], now: datetime) -> RenderableType:
    table = grid("id", "state", "specialist", "?job", "?progress", "?>polls", "?dispatched", "?next poll")
    for each in jobs:
        raised = f" ({each.raised_in_row} raised)" if each.raised_in_row else ""
        table.add_row(
            each.id,
            state(each.state),
            plain(each.declared_render_type_ref),
            plain(short(each.external_job_id, 30)),
            plain(_progress(each)),
            f"{each.polls}{raised}",
            ago(each.dispatched_at, now),
            ago(each.due_at, now),
        )
    return table


def _one(job: ExternalJobDetail, now: datetime) -> RenderableType:
    from rich.console import Group as Together

    rows: list[tuple[str, object]] = [
        ("state", state(job.state)),
        ("task", f"{job.declared_render_type_ref} {job.render_job_id}"),
        ("run", job.run_id or "-"),
        ("specialist", job.specialist_ref + ("" if job.scope is None else f" in the scope {job.scope}")),
        ("job at the service", job.external_job_id),
        ("progress", _progress(job) or "-"),
        ("interval", f"{job.polling_interval_seconds:g} s"),
        ("polls", f"{job.polls}, {job.raised} raised, {job.raised_in_row} of these in a row"),
        ("dispatched", when(job.dispatched_at, now)),
        ("last polled", when(job.last_polled_at, now)),
        ("next poll", when(job.due_at, now)),
        ("deadline", when(job.deadline_at, now)),
        ("ended", when(job.completed_at, now)),
    ]
    ends = (
        ("produced", job.render_event_object_id),
        ("failure", job.failure_detail),
        ("error code", job.error_code),
        ("last error", job.last_error),
    )
    rows += [(name, value) for name, value in ends if value]
    table = grid("at", "event", ">poll", "said")
    for event in job.events:
        said = "; ".join(f"{name} {value}" for name, value in event.payload.items() if value is not None)
        table.add_row(as_text(ms(event.at)), plain(event.kind), str(event.number), plain(short(said, 80)))
    return Together(facts(rows), plain("\nEvents", "bold"), table)
