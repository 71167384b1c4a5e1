"""Calls about external jobs, on an engine."""

from __future__ import annotations

from treadle.api.external_jobs import (
    ExternalJob,
    ExternalJobDetail,
    ExternalJobPage,
    ExternalJobsApi,
    ExternalJobsRebuilt,
)
from treadle.api.tasks import Why
from treadle.api.wire import record_of
from treadle.kernel.external.records import ShownJob
from treadle.model.states import EXTERNAL
from treadle.service.group import Group


class ExternalJobs(Group, ExternalJobsApi):
    """See `ExternalJobsApi`."""

    job_entities = (EXTERNAL.entity,)

    async def list(
        self, *, every: bool = False, run_id: str | None = None, limit: int = 50, before: str | None = None
    ) -> ExternalJobPage:
        found = await self.engine.kernel.external_jobs.list(
            live=None if every else True, run_id=run_id, before_id=before, limit=limit
        )
        return ExternalJobPage([_record(each) for each in found], found[-1].id if len(found) == limit else None)

    async def rebuild(self, *, limit: int = 500, before: str | None = None) -> ExternalJobsRebuilt:
        return await self.engine.kernel.external_upkeep.rebuild_page(before, limit)

    async def get(self, job_id: str) -> ExternalJobDetail:
        shown = await self.engine.kernel.external_jobs.show(job_id)
        record = shown.record
        reason = await self.engine.why(shown.task_id)
        return record_of(
            ExternalJobDetail,
            shown,
            record,
            why=Why(record.render_job_id, record.declared_render_type_ref, shown.state, reason.code, reason.text),
        )

    async def poll_now(self, job_id: str) -> ExternalJob:
        return _record(await self.engine.kernel.external_jobs.poll_now(job_id, actor=self.actor))

    async def cancel(self, job_id: str, *, reason: str | None = None) -> ExternalJob:
        return _record(await self.engine.kernel.external_jobs.cancel(job_id, actor=self.actor, reason=reason))


def _record(shown: ShownJob) -> ExternalJob:
    return record_of(ExternalJob, shown, shown.record)
