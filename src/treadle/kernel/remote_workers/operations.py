"""The worker protocol, as the API declares it. Reports are accepted only for workers that the caller registered."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from treadle.api.wire import record_of
from treadle.api.work import (
    Claimed,
    ClaimedTask,
    ClaimState,
    Heartbeat,
    HeldClaim,
    NewLogLine,
    ReportAccepted,
    WorkApi,
    Worker,
    WorkerLeft,
)
from treadle.kernel.effects.decide import Effect
from treadle.kernel.reads.service import Reads
from treadle.kernel.remote_workers.service import RemoteWorkers
from treadle.model import tasks as model
from treadle.model.access import OPEN, Access
from treadle.model.approvals import ApprovalRequest
from treadle.model.errors import not_found
from treadle.model.external import ExternalProductionHandle
from treadle.model.ids import parse_id
from treadle.model.names import DEFAULT_LIST
from treadle.model.values import Json


class WorkOperations(WorkApi):
    """The worker protocol of one namespace."""

    def __init__(self, workers: RemoteWorkers, reads: Reads, *, lease_for: int) -> None:
        self._workers = workers
        self._reads = reads
        self._lease_for = lease_for

    async def register(
        self,
        name: str,
        handlers: Sequence[str],
        *,
        task_lists: Sequence[str] = (DEFAULT_LIST,),
        concurrency: int = 1,
        heartbeat_every: float = 10.0,
        host: str = "outside",
        version: str = "",
        release: str = "",
        actor: str = "outside",
    ) -> Worker:
        worker = await self._workers.register(
            name,
            handlers=handlers,
            task_lists=task_lists,
            concurrency=concurrency,
            heartbeat_every=heartbeat_every,
            host=host,
            version=version,
            release=release,
            actor=actor,
        )
        return record_of(Worker, worker, worker_id=worker.id, lease_for=self._lease_for)

    async def beat(
        self,
        worker_id: str,
        *,
        claims: Sequence[HeldClaim] = (),
        running: int | None = None,
        lease: float | None = None,
        access: Access = OPEN,
    ) -> Heartbeat:
        await self._own(worker_id, access)
        named = [(claim.task_id, claim.claim_version) for claim in claims]
        return await self._workers.beat(worker_id, running=running, claims=named, lease_for=lease)

    async def leave(self, worker_id: str, *, access: Access = OPEN) -> WorkerLeft:
        await self._own(worker_id, access)
        return WorkerLeft(worker_id, await self._workers.leave(worker_id))

    async def claim(
        self,
        worker_id: str,
        *,
        limit: int = 1,
        wait_for: float = 0.0,
        lease: float | None = None,
        names: Sequence[str] | None = None,
        task_lists: Sequence[str] | None = None,
        access: Access = OPEN,
    ) -> Claimed:
        await self._own(worker_id, access)
        tasks = await self._workers.claim(
            worker_id,
            limit=limit,
            wait_for=wait_for,
            lease_for=lease,
            names=names,
            task_lists=task_lists,
            allowed=access.task_lists or None,
        )
        return Claimed([_claimed(task) for task in tasks])

    async def heartbeat(
        self, task_id: str, worker_id: str, claim_version: int, *, lease: float | None = None, access: Access = OPEN
    ) -> ClaimState:
        await self._own(worker_id, access)
        return await self._workers.heartbeat(worker_id, task_id, claim_version, lease_for=lease)

    async def progress(
        self,
        task_id: str,
        worker_id: str,
        claim_version: int,
        *,
        fraction: float | None = None,
        message: str | None = None,
        lease: float | None = None,
        access: Access = OPEN,
    ) -> ClaimState:
        await self._own(worker_id, access)
        return await self._workers.progress(worker_id, task_id, claim_version, fraction, message, lease_for=lease)

    async def partial(
        self, task_id: str, worker_id: str, claim_version: int, results: dict[str, Json], *, access: Access = OPEN
    ) -> ReportAccepted:
        await self._own(worker_id, access)
        await self._workers.partial(worker_id, task_id, claim_version, results)
        return await self._accepted(task_id)

    async def log(
        self, task_id: str, worker_id: str, claim_version: int, lines: Sequence[NewLogLine], *, access: Access = OPEN
    ) -> ReportAccepted:
        await self._own(worker_id, access)
        await self._workers.log(worker_id, task_id, claim_version, [msgspec.structs.asdict(line) for line in lines])
        return await self._accepted(task_id)

    async def complete(
        self, task_id: str, worker_id: str, claim_version: int, *, result: dict[str, Json] | None = None, access: Access = OPEN
    ) -> ReportAccepted:
        await self._own(worker_id, access)
        return await self._accepted(task_id, await self._workers.complete(worker_id, task_id, claim_version, result))

    async def fail(
        self,
        task_id: str,
        worker_id: str,
        claim_version: int,
        message: str,
        *,
        code: str = "handler_error",
        retryable: bool = True,
        after: float | None = None,
        kind: str | None = None,
        traceback: str | None = None,
        access: Access = OPEN,
    ) -> ReportAccepted:
        await self._own(worker_id, access)
        ended = await self._workers.fail(
            worker_id, task_id, claim_version, message, code, retryable=retryable, after=after, kind=kind, traceback=traceback
        )
        return await self._accepted(task_id, ended)

    async def wait(
        self, task_id: str, worker_id: str, claim_version: int, seconds: float, *, checkpoint: Json = None, access: Access = OPEN
    ) -> ReportAccepted:
        await self._own(worker_id, access)
        await self._workers.wait(worker_id, task_id, claim_version, seconds, checkpoint=checkpoint)
        return await self._accepted(task_id)

    async def ask(
        self,
        task_id: str,
        worker_id: str,
        claim_version: int,
        title: str,
        *,
        context: dict[str, Json] | None = None,
        deciders: Sequence[str] = (),
        expires: float | None = None,
        checkpoint: Json = None,
        actor: str = "outside",
        access: Access = OPEN,
    ) -> ReportAccepted:
        await self._own(worker_id, access)
        request = ApprovalRequest.of(title, context=context, deciders=deciders, expires=expires, requested_by=actor)
        await self._workers.ask(worker_id, task_id, claim_version, request, checkpoint=checkpoint)
        return await self._accepted(task_id)

    async def hand_off(
        self,
        task_id: str,
        worker_id: str,
        claim_version: int,
        external_job_id: str,
        *,
        polling_interval_seconds: float = 60.0,
        progress_hint: str | None = None,
        progress: float | None = None,
        access: Access = OPEN,
    ) -> ReportAccepted:
        await self._own(worker_id, access)
        handle = ExternalProductionHandle(external_job_id, polling_interval_seconds, progress_hint, progress)
        await self._workers.hand_off(worker_id, task_id, claim_version, handle)
        return await self._accepted(task_id)

    async def release(
        self, task_id: str, worker_id: str, claim_version: int, *, reason: str = "released by its worker", access: Access = OPEN
    ) -> ReportAccepted:
        await self._own(worker_id, access)
        await self._workers.release(worker_id, task_id, claim_version, reason)
        return await self._accepted(task_id)

    async def _own(self, worker_id: str, access: Access) -> None:
        """Raise `NotFound` unless the caller registered the worker.

        A worker that registered while the server was open may continue under any token that is not restricted to task lists.
        """
        by = await self._workers.registered_by(worker_id)
        if by != access.actor and (by != OPEN.actor or access.task_lists):
            raise not_found("worker", worker_id)

    async def _accepted(self, task_id: str, ended: str | None = None) -> ReportAccepted:
        """The current state of the task, which is read unless the task has just ended."""
        if ended is not None:
            return ReportAccepted(parse_id(task_id, "task id"), ended)
        task = await self._reads.get_task(task_id)
        return ReportAccepted(task.id, str(task.shown_state))


def _claimed(task: model.ClaimedTask) -> ClaimedTask:
    held = task.task
    key = Effect.of(held.id, held.step_id, held.root_id, held.name).dedupe_key
    return record_of(ClaimedTask, task, held, task_id=held.id, idempotency_key=key)
