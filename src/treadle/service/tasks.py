"""Calls about tasks, on an engine."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Unpack

from treadle.api.options import EnqueueOptions
from treadle.api.tasks import (
    WAIT_LIMIT,
    Task,
    TaskCreated,
    TaskDetail,
    TaskPage,
    TaskRequest,
    TaskResult,
    TasksApi,
    TasksCreated,
    Why,
)
from treadle.api.wire import record_of
from treadle.kernel.queue.service import Enqueued, TaskSpec
from treadle.kernel.reads.records import why_task
from treadle.model.errors import IdempotencyKeyReused, InvalidInput, KeyTaken, TaskCanceled, TaskFailed, TaskIgnored, TaskNotFound
from treadle.model.names import HANDLER
from treadle.model.values import Json, decode
from treadle.service.group import Group
from treadle.service.task_records import task_detail, task_records

MANY = 1000
"""Maximum number of tasks per call."""


def _spec(request: TaskRequest, actor: str) -> TaskSpec:
    """The specification of a requested task; field by field, which takes half the time of a copy by names."""
    return TaskSpec(
        name=request.name,
        payload=request.payload,
        delay=request.delay,
        at=request.at,
        priority=request.priority,
        task_list=request.task_list,
        unique_key=request.unique_key,
        idempotency_key=request.idempotency_key,
        limit_key=request.limit_key,
        limit=request.limit,
        retry=request.retry,
        timeout=request.timeout,
        progress_every=request.progress_every,
        deadline=request.deadline,
        trace_id=request.trace_id,
        scope=request.scope,
        fairness_key=request.fairness_key,
        tags=request.tags,
        created_by=actor,
    )


class Tasks(Group, TasksApi):
    """See `TasksApi`."""

    async def list(
        self,
        *,
        state: Sequence[str] = (),
        name: str | None = None,
        task_list: str | None = None,
        kind: str | None = None,
        every: bool = False,
        run_id: str | None = None,
        where: str | None = None,
        limit: int = 50,
        before: str | None = None,
    ) -> TaskPage:
        chosen = self.one_list(task_list)
        anything = every or name or chosen or run_id
        kind = kind or (None if anything else HANDLER)
        reads = self.engine.kernel.reads
        if where is not None and where.strip():
            from treadle.kernel.search.service import one_of

            given = reads.tasks_like(states=tuple(state), name=name, task_list=chosen, kind=kind, run_id=run_id)
            more = [
                *one_of("state", given.states),
                *one_of("name", [given.name]),
                *one_of("list", [given.task_list]),
                *one_of("kind", [given.kind]),
                *one_of("run", [given.run_id]),
            ]
            page = await self.engine.kernel.search.list_tasks(where, more=more, before_id=before, limit=limit)
            return TaskPage(await task_records(self.engine, page.records), page.cursor, page.searched)
        found = await reads.list_tasks(
            states=tuple(state), name=name, task_list=chosen, kind=kind, run_id=run_id, before_id=before, limit=limit
        )
        return TaskPage(await task_records(self.engine, found), found[-1].id if len(found) == limit else None)

    async def enqueue(
        self,
        name: str,
        payload: dict[str, Json] | None = None,
        **options: Unpack[EnqueueOptions],
    ) -> TaskCreated:
        spec = TaskSpec(name=name, payload={} if payload is None else payload, created_by=self.actor, **options)
        (made,) = await self._enqueue([spec])
        return await self._made(made, name)

    async def enqueue_many(self, tasks: Sequence[TaskRequest]) -> TasksCreated:
        if len(tasks) > MANY:
            raise InvalidInput(f"One call may enqueue at most {MANY} tasks, not {len(tasks)}.")
        specs = [_spec(request, self.actor) for request in tasks]
        made = await self._enqueue(specs)
        return TasksCreated(
            [
                TaskCreated(each.id, request.name, True) if each.created else await self._made(each, request.name)
                for each, request in zip(made, tasks, strict=True)
            ]
        )

    async def _enqueue(self, specs: Sequence[TaskSpec]) -> Sequence[Enqueued]:
        """Enqueue; `KeyTaken`, and nothing is stored, if a key stands for a task or request that the caller may not see."""
        await self._check_unique(specs)
        try:
            return await self.engine.enqueue_many(specs)
        except IdempotencyKeyReused as error:
            if self.access.task_lists and error.stored_id is not None:
                stored = await self.engine.kernel.store.tasks.find(error.stored_id)
                if stored is not None and not self.access.may_use(stored.task_list):
                    raise KeyTaken(next(spec.name for spec in specs if spec.idempotency_key == error.key)) from None
            raise

    async def _check_unique(self, specs: Sequence[TaskSpec]) -> None:
        named = {spec.unique_key: spec.name for spec in specs if spec.unique_key is not None} if self.access.task_lists else {}
        if named:
            engine = self.engine
            holders = await engine.kernel.store.tasks.find_unique(engine.kernel.settings.namespace, list(named))
            for key, task_list in holders.items():
                if not self.access.may_use(task_list):
                    raise KeyTaken(named[key])

    async def _made(self, made: Enqueued, name: str) -> TaskCreated:
        """The new task, or the one that its keys stand for; `KeyTaken` if the caller may not see that one."""
        if not made.created:
            with suppress(TaskNotFound):  # the task may have been pruned
                stored = await self.engine.kernel.reads.get_task(made.id)
                if not self.access.may_use(stored.task_list):
                    raise KeyTaken(name)
                name = stored.name
        return TaskCreated(made.id, name, made.created)

    async def get(self, task_id: str) -> TaskDetail:
        return await task_detail(self.engine, await self.find_task(task_id))

    async def why(self, task_id: str) -> Why:
        task = await self.find_task(task_id)
        return why_task(task, await self.engine.kernel.reads.explain(task))

    async def result(self, task_id: str, *, wait_for: float = 0.0) -> TaskResult:
        if not 0 <= wait_for <= WAIT_LIMIT:
            raise InvalidInput(f"wait_for must be from 0 to {WAIT_LIMIT:g} seconds, not {wait_for:g}.")
        task = await self.find_task(task_id)
        if not task.finished and wait_for:
            with suppress(TimeoutError, TaskFailed, TaskCanceled, TaskIgnored):
                await self.engine.result(task.id, timeout=wait_for)
            task = await self.find_task(task_id)
        task = await self.engine.kernel.open_values(task)
        return record_of(
            TaskResult,
            task,
            state=task.shown_state,
            result=decode(task.result),
            error=decode(task.error),
            why=(await self.engine.kernel.reads.explain(task)).text,
        )

    async def cancel(self, task_id: str, *, reason: str | None = None) -> Task:
        return await self._changed(task_id, partial(self.engine.kernel.queue.cancel, reason=reason))

    async def retry(self, task_id: str, *, payload: dict[str, Json] | None = None) -> Task:
        return await self._changed(task_id, partial(self.engine.kernel.queue.retry, payload=payload))

    async def pause(self, task_id: str, *, reason: str | None = None, interrupt: bool = False) -> Task:
        return await self._changed(task_id, partial(self.engine.kernel.queue.pause, reason=reason, interrupt=interrupt))

    async def resume(self, task_id: str) -> Task:
        return await self._changed(task_id, self.engine.kernel.queue.resume)

    async def _changed(self, task_id: str, change: Callable[..., Awaitable[object]]) -> Task:
        """Make the change if the caller may see the task, and return the task after it."""
        await self.find_task(task_id)
        await change(task_id, actor=self.actor)
        return (await task_records(self.engine, [await self.find_task(task_id)]))[0]
