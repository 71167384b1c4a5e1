"""`treadle external ...`: jobs in outside services."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from treadle.cli.session import Session
from treadle.cli.words import ago, facts, grid, plain, short, state, when
from treadle.model.clock import as_text
from treadle.model.values import Json

if TYPE_CHECKING:
    from rich.console import RenderableType

    from treadle.kernel.externals import ShownJob

Job = Annotated[str, typer.Argument(metavar="ID", help="The job's id, or that of its task")]


async def list_jobs(
    session: Session,
    every: Annotated[bool, typer.Option("--all", help="Those that have ended too")] = False,
    run_id: Annotated[str | None, typer.Option("--run", metavar="ID", help="Only of this run")] = None,
    limit: Annotated[int, typer.Option(help="At most that many, up to 1000")] = 50,
    before: Annotated[str | None, typer.Option(metavar="ID", help="The next page: only jobs older than this one")] = None,
) -> None:
    """List jobs that outside services work on, newest first."""
    async with session.engine() as engine:
        found = await engine.externals.list(live=None if every else True, run_id=run_id, before_id=before, limit=limit)
        now = await engine.store.now()
    more = found[-1].id if len(found) == limit else None
    session.show({"jobs": [job_json(each) for each in found], "next_before": more}, lambda: _table(found, now, more))


async def show(session: Session, job_id: Job) -> None:
    """Everything about one job: its record, and the events that are kept."""
    async with session.engine() as engine:
        found = await engine.externals.show(job_id)
        now = await engine.store.now()
    session.show(job_json(found) | {"events": _events_json(found)}, lambda: _one(found, now))


async def poll_now(session: Session, job_id: Job) -> None:
    """Make the job due now, whatever its interval says; a worker polls it."""
    async with session.engine() as engine:
        done = await engine.externals.poll_now(job_id, actor=session.actor)
    session.show(job_json(done), lambda: plain(f"The job {done.record.external_job_id} is due now."))


async def cancel(
    session: Session,
    job_id: Job,
    reason: Annotated[str | None, typer.Option(help="Why; kept with the task")] = None,
) -> None:
    """End the task, and have the service told that the job is not wanted any more."""
    async with session.engine() as engine:
        done = await engine.externals.cancel(job_id, actor=session.actor, reason=reason)
    session.show(job_json(done), lambda: plain(f"The job {done.record.external_job_id} is canceled; its service will be told."))


async def rebuild(session: Session) -> None:
    """Make every job's record from its events again; `store verify` says whether any needs it."""
    async with session.engine() as engine:
        looked_at, changed = await engine.external_upkeep.rebuild()
    session.show({"records": looked_at, "changed": changed}, lambda: plain(f"{looked_at} record(s), {changed} of them made anew."))


def job_json(shown: ShownJob) -> dict[str, Json]:
    """A job, the same names as in Python and in the view."""
    record = shown.record
    return {
        "id": shown.id,
        "state": shown.state,
        "run_id": shown.run_id,
        "render_job_id": record.render_job_id,
        "declared_render_type_ref": record.declared_render_type_ref,
        "specialist_ref": record.specialist_ref,
        "scope": record.scope,
        "external_job_id": record.external_job_id,
        "polling_interval_seconds": record.polling_interval_seconds,
        "progress_hint": record.progress_hint,
        "progress": record.progress,
        "dispatched_at": as_text(record.dispatched_at),
        "last_polled_at": as_text(record.last_polled_at),
        "completed_at": as_text(record.completed_at),
        "due_at": as_text(record.due_at),
        "deadline_at": as_text(record.deadline_at),
        "render_event_object_id": record.render_event_object_id,
        "failure_detail": record.failure_detail,
        "error_code": record.error_code,
        "polls": record.polls,
        "raised": record.raised,
        "raised_in_row": record.raised_in_row,
        "last_error": record.last_error,
    }


def _events_json(shown: ShownJob) -> list[dict[str, Json]]:
    return [
        {"kind": each.kind, "number": each.number, "at": as_text(each.at), "payload": dict(each.payload)} for each in shown.events
    ]


def _progress(shown: ShownJob) -> str:
    record = shown.record
    part = "" if record.progress is None else f"{record.progress:.0%} "
    return part + short(record.progress_hint or record.failure_detail or "", 40)


def _table(found: list[ShownJob], now: int, more: str | None) -> RenderableType:
    from rich.console import Group as Together

    if not found:
        return plain("No outside jobs; --all shows those that have ended too.")
    table = grid("id", "state", "specialist", "job", "progress", ">polls", "dispatched", "next poll")
    for each in found:
        record = each.record
        raised = f" ({record.raised_in_row} raised)" if record.raised_in_row else ""
        table.add_row(
            each.id,
            state(each.state),
            plain(record.declared_render_type_ref),
            plain(short(record.external_job_id, 30)),
            plain(_progress(each)),
            f"{record.polls}{raised}",
            ago(record.dispatched_at, now),
            ago(record.due_at, now),
        )
    return Together(table, plain(f"More: treadle external list --before {more}", "dim")) if more else table


def _one(shown: ShownJob, now: int) -> RenderableType:
    from rich.console import Group as Together

    record = shown.record
    rows: list[tuple[str, object]] = [
        ("state", state(shown.state)),
        ("task", f"{record.declared_render_type_ref} {record.render_job_id}"),
        ("run", shown.run_id or "-"),
        ("specialist", record.specialist_ref + ("" if record.scope is None else f" in the scope {record.scope}")),
        ("job at the service", record.external_job_id),
        ("progress", _progress(shown) or "-"),
        ("interval", f"{record.polling_interval_seconds:g} s"),
        ("polls", f"{record.polls}, {record.raised} raised, {record.raised_in_row} of these in a row"),
        ("dispatched", when(record.dispatched_at, now)),
        ("last polled", when(record.last_polled_at, now)),
        ("next poll", when(record.due_at, now)),
        ("deadline", when(record.deadline_at, now)),
        ("ended", when(record.completed_at, now)),
    ]
    ends = (
        ("produced", record.render_event_object_id),
        ("failure", record.failure_detail),
        ("error code", record.error_code),
        ("last error", record.last_error),
    )
    rows += [(name, value) for name, value in ends if value]
    table = grid("at", "event", ">poll", "said")
    for event in shown.events:
        said = "; ".join(f"{name} {value}" for name, value in event.payload.items() if value is not None)
        table.add_row(as_text(event.at), plain(event.kind), str(event.number), plain(short(said, 80)))
    return Together(facts(rows), plain("\nEvents", "bold"), table)
