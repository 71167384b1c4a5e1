"""Calls about outside jobs, on an engine."""

from __future__ import annotations

from typing import Any

from treadle.api.external_jobs import (
    ExternalJob,
    ExternalJobDetail,
    ExternalJobEvent,
    ExternalJobPage,
    ExternalJobsApi,
    ExternalJobsRebuilt,
)
from treadle.api.tasks import Why
from treadle.kernel.external.service import ShownJob
from treadle.service.group import Group
from treadle.service.shaping import instant


class ExternalJobs(Group, ExternalJobsApi):
    """See `ExternalJobsApi`."""

    async def list(
        self, *, every: bool = False, run_id: str | None = None, limit: int = 50, before: str | None = None
    ) -> ExternalJobPage:
        found = await self.engine.external_jobs.list(live=None if every else True, run_id=run_id, before_id=before, limit=limit)
        return ExternalJobPage([_shaped(each) for each in found], found[-1].id if len(found) == limit else None)

    async def rebuild(self, *, limit: int = 500, before: str | None = None) -> ExternalJobsRebuilt:
        done = await self.engine.kernel.external_upkeep.rebuild_page(before, limit)
        return ExternalJobsRebuilt(done.looked_at, done.changed, done.next_before)

    async def get(self, job_id: str) -> ExternalJobDetail:
        shown = await self.engine.external_jobs.show(job_id)
        record = shown.record
        reason = await self.engine.why(record.render_job_id)
        return ExternalJobDetail(
            **_fields(shown),
            events=[ExternalJobEvent(each.kind, each.number, instant(each.at), dict(each.payload)) for each in shown.events],
            why=Why(record.render_job_id, record.declared_render_type_ref, shown.state, reason.code, reason.text),
        )

    async def poll_now(self, job_id: str) -> ExternalJob:
        return _shaped(await self.engine.external_jobs.poll_now(job_id, actor=self.actor))

    async def cancel(self, job_id: str, *, reason: str | None = None) -> ExternalJob:
        return _shaped(await self.engine.external_jobs.cancel(job_id, actor=self.actor, reason=reason))


def _shaped(shown: ShownJob) -> ExternalJob:
    return ExternalJob(**_fields(shown))


def _fields(shown: ShownJob) -> dict[str, Any]:
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
        "dispatched_at": instant(record.dispatched_at),
        "last_polled_at": instant(record.last_polled_at),
        "completed_at": instant(record.completed_at),
        "due_at": instant(record.due_at),
        "deadline_at": instant(record.deadline_at),
        "render_event_object_id": record.render_event_object_id,
        "failure_detail": record.failure_detail,
        "error_code": record.error_code,
        "polls": record.polls,
        "raised": record.raised,
        "raised_in_row": record.raised_in_row,
        "last_error": record.last_error,
    }
