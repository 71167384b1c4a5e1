"""Calls about dispatch jobs, on the coordinator of an engine."""

from __future__ import annotations

from typing import Any

import msgspec

from treadle.api.dispatch import Dequeued, DispatchApi, DispatchedJob, DispatchedJobPage, Issue
from treadle.api.wire import record_of, to_builtins
from treadle.dispatch import AgentCoordinator, JobNotFound, TaskState, TaskStatus, coordinator_of
from treadle.model.access import Scope
from treadle.model.values import Json
from treadle.service.group import Group


class Dispatch(Group, DispatchApi):
    """See `DispatchApi`. All jobs are in one task list, which tokens that are restricted to lists must be for."""

    async def list(self, *, status: str | None = None, limit: int = 50, before: str | None = None) -> DispatchedJobPage:
        found, cursor, more = await self._coordinator().list_jobs(status=status, before_id=before, limit=limit)
        return DispatchedJobPage([_record(each) for each in found], cursor if more else None)

    async def enqueue(
        self,
        issue: Issue,
        *,
        priority: int = 0,
        delay: float | None = None,
        metadata: dict[str, Json] | None = None,
        unique_key: str | None = None,
        idempotency_key: str | None = None,
    ) -> DispatchedJob:
        given = {name: value for name, value in to_builtins(issue).items() if value is not None}
        made = await self._coordinator().enqueue(
            given,
            priority=priority,
            delay=delay,
            metadata=metadata,
            unique_key=unique_key,
            idempotency_key=idempotency_key,
            actor=self.actor,
        )
        return await self.get(made)

    async def get(self, job_id: str) -> DispatchedJob:
        found = await self._coordinator().get_task(job_id)
        if found is None:
            raise JobNotFound(job_id)
        return _record(found)

    async def dequeue(self, worker_id: str) -> Dequeued:
        found = await self._coordinator().dequeue(worker_id, actor=self.actor)
        return Dequeued(None if found is None else _record(found))

    async def update_status(
        self,
        job_id: str,
        worker_id: str,
        status: str,
        *,
        error: str | None = None,
        result: dict[str, Json] | None = None,
        retry: bool = False,
    ) -> DispatchedJob:
        await self._coordinator().update_status(
            job_id, status, error, result=result, retry=retry, worker_id=worker_id, actor=self.actor
        )
        return await self.get(job_id)

    async def retry(self, job_id: str) -> DispatchedJob:
        await self._coordinator().retry(job_id, actor=self.actor)
        return await self.get(job_id)

    async def cancel(self, job_id: str, *, reason: str | None = None) -> DispatchedJob:
        await self._coordinator().cancel(job_id, reason=reason, actor=self.actor)
        return await self.get(job_id)

    async def permit(self, name: str, /, *args: Any, **options: Any) -> None:
        await super().permit(name, *args, **options)
        self.access.check_list(self._coordinator().config.task_list)

    async def permit_update_status(self, *, status: str, **_: Any) -> None:
        """Canceling is an operator's action under every name."""
        if TaskStatus.of(status) is TaskStatus.CANCELED:
            self.access.check(Scope.OPERATE)

    def _coordinator(self) -> AgentCoordinator:
        return coordinator_of(self.engine)


def _record(job: TaskState) -> DispatchedJob:
    plain: dict[str, Any] = msgspec.to_builtins(job)
    issue = msgspec.convert(plain["issue"], Issue)
    return record_of(DispatchedJob, job, status=plain["status"], issue=issue, metadata=plain["metadata"])
