"""Tasks as the API and Python programs (`engine.tasks`) read and operate them, with what a caller may see of other lists."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Unpack, cast

from msgspec.structs import asdict

from treadle.api.options import PYTHON, EnqueueOptions
from treadle.api.tasks import (
    WAIT_LIMIT,
    Parameters,
    Task,
    TaskCreated,
    TaskDetail,
    TaskPage,
    TaskRequest,
    TaskResult,
    TasksApi,
    TasksCreated,
    TaskSpec,
    Why,
)
from treadle.api.wire import record_of
from treadle.kernel.core import Core, Service
from treadle.kernel.parameters import ParametersService
from treadle.kernel.queue.service import TASKS_PER_UNIT, Enqueued, Queue
from treadle.kernel.reads.records import why_task
from treadle.kernel.reads.service import Reads
from treadle.kernel.tasks.records import TaskRecords
from treadle.model.access import OPEN, Access
from treadle.model.errors import (
    IdempotencyKeyReused,
    InvalidInput,
    Refused,
    TaskCanceled,
    TaskFailed,
    TaskIgnored,
    TaskNotFound,
)
from treadle.model.ids import Ref
from treadle.model.names import HANDLER
from treadle.model.values import Json, decode, decode_error

if TYPE_CHECKING:
    import msgspec

    from treadle.kernel.search.service import Search


class Tasks(Service, TasksApi):
    """The tasks of one namespace."""

    def __init__(
        self,
        core: Core,
        queue: Queue,
        reads: Reads,
        records: TaskRecords,
        search: Callable[[], Search],
        wait: Callable[[str, float], Awaitable[object]],
    ) -> None:
        """`wait` waits for the end of a task and returns its result, or raises the error that it ended with."""
        super().__init__(core)
        self._queue = queue
        self._reads = reads
        self._records = records
        self._search = search
        self._wait = wait

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
        access: Access = OPEN,
    ) -> TaskPage:
        chosen = access.one_list(task_list)
        anything = every or name or chosen or run_id
        kind = kind or (None if anything else HANDLER)
        if where is not None and where.strip():
            from treadle.kernel.search.service import one_of

            conditions = self._reads.tasks_like(states=tuple(state), name=name, task_list=chosen, kind=kind, run_id=run_id)
            more = [
                *one_of("state", conditions.states),
                *one_of("name", [conditions.name]),
                *one_of("list", [conditions.task_list]),
                *one_of("kind", [conditions.kind]),
                *one_of("run", [conditions.run_id]),
            ]
            page = await self._search().list_tasks(where, more=more, before_id=before, limit=limit)
            return TaskPage(await self._records.show_all(page.records), page.searched, page.complete, next_before=page.cursor)
        tasks = await self._reads.list_tasks(
            states=tuple(state), name=name, task_list=chosen, kind=kind, run_id=run_id, before_id=before, limit=limit
        )
        return TaskPage(await self._records.show_all(tasks), next_before=tasks[-1].id if len(tasks) == limit else None)

    async def enqueue(
        self,
        name: str,
        payload: dict[str, Json] | None = None,
        *,
        actor: str = PYTHON,
        access: Access = OPEN,
        **options: Unpack[EnqueueOptions],
    ) -> TaskCreated:
        spec = TaskSpec(name=name, payload={} if payload is None else payload, created_by=actor, **options)
        (created,) = await self._enqueue([spec], access)
        return await self._created(created, name, access)

    async def enqueue_many(self, tasks: Sequence[TaskRequest], *, actor: str = PYTHON, access: Access = OPEN) -> TasksCreated:
        if len(tasks) > TASKS_PER_UNIT:
            raise InvalidInput(f"One call may enqueue at most {TASKS_PER_UNIT} tasks, not {len(tasks)}.")
        created = await self._enqueue(
            [TaskSpec(created_by=actor, **asdict(cast("msgspec.Struct", request))) for request in tasks], access
        )
        return TasksCreated(
            [
                TaskCreated(task.id, request.name, True) if task.created else await self._created(task, request.name, access)
                for task, request in zip(created, tasks, strict=True)
            ]
        )

    async def _enqueue(self, specs: Sequence[TaskSpec], access: Access) -> Sequence[Enqueued]:
        """Enqueue; refuse it with `key_taken`, storing nothing, if a key stands for a task that the caller may not see."""
        await self._check_unique(specs, access)
        try:
            return await self._queue.enqueue(specs)
        except IdempotencyKeyReused as error:
            if access.task_lists and error.stored_id is not None:
                stored = await self._store.tasks.find(error.stored_id)
                if stored is not None and not access.may_use(stored.task_list):
                    raise _key_taken(next(spec.name for spec in specs if spec.idempotency_key == error.key)) from None
            raise

    async def _check_unique(self, specs: Sequence[TaskSpec], access: Access) -> None:
        named = {spec.unique_key: spec.name for spec in specs if spec.unique_key is not None} if access.task_lists else {}
        if named:
            holders = await self._store.tasks.find_unique(self._namespace, list(named))
            for key, task_list in holders.items():
                if not access.may_use(task_list):
                    raise _key_taken(named[key])

    async def _created(self, enqueued: Enqueued, name: str, access: Access) -> TaskCreated:
        """The new task, or the one that its keys stand for; `Refused` (`key_taken`) if the caller may not see that one."""
        if not enqueued.created:
            with suppress(TaskNotFound):  # the task may have been pruned
                stored = await self._reads.get_task(enqueued.id)
                if not access.may_use(stored.task_list):
                    raise _key_taken(name)
                name = stored.name
        return TaskCreated(enqueued.id, name, enqueued.created)

    async def parameters(self, name: str, *, version: int | None = None) -> Parameters:
        return await ParametersService(self._core).get(name, version)

    async def get(self, task_id: Ref, *, access: Access = OPEN) -> TaskDetail:
        return await self._records.detail(await self._records.find(task_id, access))

    async def why(self, task_id: Ref, *, access: Access = OPEN) -> Why:
        task = await self._records.find(task_id, access)
        return why_task(task, await self._reads.explain(task))

    async def result(self, task_id: Ref, *, wait_for: float = 0.0, access: Access = OPEN) -> TaskResult:
        if not 0 <= wait_for <= WAIT_LIMIT:
            raise InvalidInput(f"wait_for must be from 0 to {WAIT_LIMIT:g} seconds, not {wait_for:g}.")
        task = await self._records.find(task_id, access)
        if not task.finished and wait_for:
            with suppress(TimeoutError, TaskFailed, TaskCanceled, TaskIgnored):
                await self._wait(task.id, wait_for)
            task = await self._records.find(task_id, access)
        task = await self._value_store.unpack_task(task)
        return record_of(
            TaskResult,
            task,
            state=task.shown_state,
            result=decode(task.result),
            error=decode_error(task.error) or None,
            why=(await self._reads.explain(task)).text,
        )

    async def cancel(self, task_id: Ref, *, reason: str | None = None, actor: str = PYTHON, access: Access = OPEN) -> Task:
        return await self._changed(task_id, access, partial(self._queue.cancel, actor=actor, reason=reason))

    async def retry(
        self, task_id: Ref, *, payload: dict[str, Json] | None = None, actor: str = PYTHON, access: Access = OPEN
    ) -> Task:
        return await self._changed(task_id, access, partial(self._queue.retry, actor=actor, payload=payload))

    async def pause(
        self,
        task_id: Ref,
        *,
        reason: str | None = None,
        interrupt: bool = False,
        actor: str = PYTHON,
        access: Access = OPEN,
    ) -> Task:
        return await self._changed(task_id, access, partial(self._queue.pause, actor=actor, reason=reason, interrupt=interrupt))

    async def resume(self, task_id: Ref, *, actor: str = PYTHON, access: Access = OPEN) -> Task:
        return await self._changed(task_id, access, partial(self._queue.resume, actor=actor))

    async def _changed(self, task_id: Ref, access: Access, change: Callable[[str], Awaitable[object]]) -> Task:
        """Make the change if the caller may see the task, and return the task after it."""
        task = await self._records.find(task_id, access)
        await change(task.id)
        return (await self._records.show_all([await self._reads.get_task(task.id)]))[0]


def _key_taken(name: str) -> Refused:
    """The key belongs to a task that the caller may not see: the error reveals nothing about it."""
    return Refused(
        f"No task {name} was enqueued: a task in another task list has its unique or idempotency key. Keys are shared by all task "
        "lists; choose another one.",
        code="key_taken",
    )
