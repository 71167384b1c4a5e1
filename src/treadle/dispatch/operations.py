"""Operations on dispatch jobs, as the API declares them, on the coordinator of an engine."""

from __future__ import annotations

from typing import Any

import msgspec

from treadle.api.dispatch import Dequeued, DispatchApi, DispatchedJob, DispatchedJobLog, DispatchedJobPage, Issue
from treadle.api.tasks import TaskLogLine
from treadle.api.wire import record_of, to_builtins
from treadle.dispatch import AgentCoordinator, JobNotFound, TaskState, TaskStatus, coordinator_of
from treadle.engine import Engine
from treadle.kernel.store.lookups import check_limit
from treadle.model.access import Access, Scope
from treadle.model.values import Json


class DispatchOperations(DispatchApi):
    """The jobs of one coordinator. All are in one task list, which tokens that are restricted to lists must be for."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def list(self, *, status: str | None = None, limit: int = 50, before: str | None = None) -> DispatchedJobPage:
        jobs, cursor, more = await self._coordinator().list_jobs(status=status, before_id=before, limit=limit)
        return DispatchedJobPage([_record(job) for job in jobs], next_before=cursor if more else None)

    async def enqueue(
        self,
        issue: Issue,
        *,
        priority: int = 0,
        delay: float | None = None,
        metadata: dict[str, Json] | None = None,
        unique_key: str | None = None,
        idempotency_key: str | None = None,
        actor: str = "operator",
    ) -> DispatchedJob:
        fields = {name: value for name, value in to_builtins(issue).items() if value is not None}
        job_id = await self._coordinator().enqueue(
            fields,
            priority=priority,
            delay=delay,
            metadata=metadata,
            unique_key=unique_key,
            idempotency_key=idempotency_key,
            actor=actor,
        )
        return await self.get(job_id)

    async def get(self, job_id: str) -> DispatchedJob:
        job = await self._coordinator().get_task(job_id)
        if job is None:
            raise JobNotFound(job_id)
        return _record(job)

    async def logs(self, job_id: str, *, limit: int = 100) -> DispatchedJobLog:
        check_limit(limit)
        lines = await self._coordinator().get_logs(job_id, limit)
        return DispatchedJobLog([record_of(TaskLogLine, line, details=line.public_details or None) for line in lines])

    async def dequeue(self, worker_id: str, *, actor: str = "operator") -> Dequeued:
        job = await self._coordinator().dequeue(worker_id, actor=actor)
        return Dequeued(None if job is None else _record(job))

    async def update_status(
        self,
        job_id: str,
        worker_id: str,
        status: str,
        *,
        error: str | None = None,
        result: dict[str, Json] | None = None,
        retry: bool = False,
        actor: str = "operator",
    ) -> DispatchedJob:
        await self._coordinator().update_status(job_id, status, error, result=result, retry=retry, worker_id=worker_id, actor=actor)
        return await self.get(job_id)

    async def retry(self, job_id: str, *, actor: str = "operator") -> DispatchedJob:
        await self._coordinator().retry(job_id, actor=actor)
        return await self.get(job_id)

    async def cancel(self, job_id: str, *, reason: str | None = None, actor: str = "operator") -> DispatchedJob:
        await self._coordinator().cancel(job_id, reason=reason, actor=actor)
        return await self.get(job_id)

    async def authorize_any(self, access: Access, **_: Any) -> None:
        """Refuse callers that may not use the list of the jobs."""
        access.check_list(self._coordinator().config.task_list)

    authorize_list = authorize_enqueue = authorize_get = authorize_logs = authorize_dequeue = authorize_retry = authorize_cancel = (
        authorize_any
    )

    async def authorize_update_status(self, access: Access, *, status: str, **_: Any) -> None:
        """Canceling is an operator's action under every name."""
        if TaskStatus.of(status) is TaskStatus.CANCELED:
            access.check(Scope.OPERATE)
        await self.authorize_any(access)

    def _coordinator(self) -> AgentCoordinator:
        return coordinator_of(self._engine)


def _record(job: TaskState) -> DispatchedJob:
    plain: dict[str, Any] = msgspec.to_builtins(job)
    issue = msgspec.convert(plain["issue"], Issue)
    return record_of(DispatchedJob, job, status=plain["status"], issue=issue, metadata=plain["metadata"])


make_operations = DispatchOperations
