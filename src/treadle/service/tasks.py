"""Calls about tasks, on an engine."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Unpack

from treadle.api.options import EnqueueOptions
from treadle.api.tasks import WAIT_LIMIT, Task, TaskDetail, TaskMade, TaskPage, TaskResult, TasksApi, TasksMade, TaskWish, Why
from treadle.kernel.queue.service import Enqueued, TaskSpec
from treadle.model import tasks as model
from treadle.model.errors import InvalidInput, KeyTaken, TaskCanceled, TaskFailed, TaskIgnored, TaskNotFound
from treadle.model.names import DEFAULT_LIST, HANDLER
from treadle.model.values import Json, decode
from treadle.service.group import Group
from treadle.service.shaping import shaped_detail, shaped_task

MANY = 1000
"""Tasks that one call may enqueue."""
_LINES = 100


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
        limit: int = 50,
        before: str | None = None,
    ) -> TaskPage:
        chosen = self.one_list(task_list)
        anything = every or name or chosen or run_id
        found = await self.engine.kernel.reads.list_tasks(
            states=tuple(state),
            name=name,
            task_list=chosen,
            kind=kind or (None if anything else HANDLER),
            run_id=run_id,
            before_id=before,
            limit=limit,
        )
        return TaskPage([shaped_task(task) for task in found], found[-1].id if len(found) == limit else None)

    async def enqueue(
        self,
        name: str,
        payload: dict[str, Json] | None = None,
        **options: Unpack[EnqueueOptions],
    ) -> TaskMade:
        self.access.check_list(options.get("task_list", DEFAULT_LIST))
        spec = TaskSpec(name=name, payload={} if payload is None else payload, **options)
        (made,) = await self.engine.enqueue_many([spec])
        return await self._made(made, name)

    async def enqueue_many(self, tasks: Sequence[TaskWish]) -> TasksMade:
        if len(tasks) > MANY:
            raise InvalidInput(f"One call may enqueue {MANY} tasks, not {len(tasks)}.")
        for wish in tasks:
            self.access.check_list(wish.task_list)
        specs = [TaskSpec(**asdict(wish) | {"payload": wish.payload or {}}) for wish in tasks]
        made = await self.engine.enqueue_many(specs)
        return TasksMade([await self._made(each, wish.name) for each, wish in zip(made, tasks, strict=True)])

    async def _made(self, made: Enqueued, name: str) -> TaskMade:
        """What was made, or what its keys stand for, if the caller may know that; else `KeyTaken`."""
        if not made.created and self.access.task_lists:
            with suppress(TaskNotFound):  # of what has been pruned nothing can be told
                if not self.access.may_use((await self.engine.kernel.reads.get_task(made.id)).task_list):
                    raise KeyTaken(name)
        return TaskMade(made.id, name, made.created)

    async def get(self, task_id: str) -> TaskDetail:
        task = await self.engine.kernel.open_values(await self._find(task_id))
        reads = self.engine.kernel.reads
        return shaped_detail(
            task, await self.engine.why(task.id), await reads.list_moves(task.id), await reads.list_lines(task.id, _LINES)
        )

    async def why(self, task_id: str) -> Why:
        task = await self._find(task_id)
        reason = await self.engine.why(task.id)
        return Why(task.id, task.name, task.shown_state, reason.code, reason.text)

    async def result(self, task_id: str, *, wait_for: float = 0.0) -> TaskResult:
        if not 0 <= wait_for <= WAIT_LIMIT:
            raise InvalidInput(f"wait_for must be from 0 to {WAIT_LIMIT:g} seconds, not {wait_for:g}.")
        task = await self._find(task_id)
        if not task.finished and wait_for:
            try:
                await self.engine.result(task.id, timeout=wait_for)
            except (TimeoutError, TaskFailed, TaskCanceled, TaskIgnored):
                pass  # what it came to is read below
        task = await self.engine.kernel.open_values(await self._find(task_id))
        reason = await self.engine.why(task.id)
        return TaskResult(
            id=task.id,
            name=task.name,
            state=str(task.shown_state),
            finished=task.finished,
            result=decode(task.result),
            error=decode(task.error),
            error_code=task.error_code,
            why=reason.text,
        )

    async def cancel(self, task_id: str, *, reason: str | None = None) -> Task:
        await self._find(task_id)
        await self.engine.kernel.queue.cancel(task_id, actor=self.actor, reason=reason)
        return shaped_task(await self._find(task_id))

    async def retry(self, task_id: str, *, payload: dict[str, Json] | None = None) -> Task:
        await self._find(task_id)
        await self.engine.kernel.queue.retry(task_id, actor=self.actor, payload=payload)
        return shaped_task(await self._find(task_id))

    async def pause(self, task_id: str) -> Task:
        await self._find(task_id)
        await self.engine.kernel.queue.pause(task_id, actor=self.actor)
        return shaped_task(await self._find(task_id))

    async def resume(self, task_id: str) -> Task:
        await self._find(task_id)
        await self.engine.kernel.queue.resume(task_id, actor=self.actor)
        return shaped_task(await self._find(task_id))

    async def _find(self, task_id: str) -> model.Task:
        """The task, if the caller may see it: one of another list is as one that is not there."""
        task = await self.engine.kernel.reads.get_task(task_id)
        if not self.access.may_use(task.task_list):
            raise TaskNotFound(task_id)
        return task
