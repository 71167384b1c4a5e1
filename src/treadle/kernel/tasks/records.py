"""Tasks as the API shows them, made from stored ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from treadle.api.tasks import Task, TaskDetail, TaskLogLine
from treadle.api.wire import Instant, record_of
from treadle.kernel.core import Core, Service
from treadle.kernel.external.records import without_key
from treadle.kernel.functions.notes import shown_wake_at, without_steps
from treadle.kernel.reads.about import about_task
from treadle.kernel.reads.records import transition_record, why_task
from treadle.kernel.reads.service import Reads
from treadle.model import tasks as model
from treadle.model.access import Access
from treadle.model.errors import TaskNotFound
from treadle.model.ids import Ref
from treadle.model.states import BlockReason
from treadle.model.tags import decode_tags
from treadle.model.values import decode, decode_error, decode_or_error, decode_shown

BLOCK_REASONS = {
    BlockReason.OVER_LIMIT: "over_limit",
    BlockReason.LIST_PAUSED: "list_paused",
    BlockReason.RUN_PAUSED: "run_paused",
    BlockReason.TASK_PAUSED: "task_paused",
}
LINES = 100
"""Log lines in the detail of a task."""

T = TypeVar("T", bound=Task)


class TaskRecords(Service):
    """Reads tasks for display."""

    def __init__(self, core: Core, reads: Reads) -> None:
        super().__init__(core)
        self._reads = reads

    async def find(self, task_id: Ref, access: Access) -> model.Task:
        """The task; raises `TaskNotFound` if the caller may not see its list."""
        task = await self._reads.get_task(task_id)
        if not access.may_use(task.task_list):
            raise TaskNotFound(task.id)
        return task

    def show(self, kind: type[T], task: model.Task, **more: Any) -> T:
        """A record with the fields of a task, without its payload and result, and `more`."""
        return record_of(
            kind,
            task,
            about=about_task(task, self._value_store),
            state=str(task.shown_state),
            wake_at=None if (at := shown_wake_at(task)) is None else Instant.of(at),
            limit_keys=list(task.all_limit_keys),
            blocked_by=[word for bit, word in BLOCK_REASONS.items() if task.blocked_by & bit],
            root_id=task.root_id or None,
            policy=decode_shown(task.policy),
            progress=without_steps(decode_or_error(task.progress) or None),
            error=decode_error(task.error) or None,
            **more,
        )

    async def show_all(self, tasks: Sequence[model.Task]) -> list[Task]:
        """Records of tasks for a list, with their tags."""
        tags = await self._store.search.list_tags([task.id for task in tasks]) if tasks else {}
        return [self.show(Task, task, tags=decode_tags(tags.get(task.id, {}))) for task in tasks]

    async def detail(self, task: model.Task, kind: type[T] = TaskDetail) -> T:  # type: ignore[assignment]
        """Everything about a task that was read already."""
        task = await self._value_store.unpack_task(task)
        tags = await self._store.search.list_tags([task.id])
        return self.show(
            kind,
            task,
            tags=decode_tags(tags.get(task.id, {})),
            payload=decode_shown(task.payload),
            result=decode_shown(task.result),
            checkpoint=without_key(decode_shown(task.checkpoint, decode)),
            release=(await self._reads.list_releases()).get(task.owner_id),
            why=why_task(task, await self._reads.explain(task)),
            transitions=[transition_record(transition) for transition in await self._store.log.list_transitions(task.id)],
            lines=[
                record_of(TaskLogLine, line, details=line.public_details or None)
                for line in await self._store.log.list_lines(task.id, LINES)
            ],
        )
