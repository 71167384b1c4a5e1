"""Public records of tasks, their moves and log lines, made from stored ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from treadle.api.tasks import Task, TaskDetail, TaskLogLine
from treadle.api.wire import Instant, record_of
from treadle.engine import Engine
from treadle.kernel.external.intents import without_key
from treadle.kernel.functions.reads import shown_wake_at, without_steps
from treadle.kernel.reads.about import about_task
from treadle.kernel.reads.records import move_record, why_task
from treadle.model import tasks as model
from treadle.model.states import Hold
from treadle.model.tags import decode_tags
from treadle.model.values import decode, decode_shown

HOLDS = {
    Hold.OVER_LIMIT: "over_limit",
    Hold.LIST_PAUSED: "list_paused",
    Hold.RUN_PAUSED: "run_paused",
    Hold.TASK_PAUSED: "task_paused",
}
LINES = 100
"""Log lines in the detail of a task."""

T = TypeVar("T", bound=Task)


def task_record(kind: type[T], engine: Engine, task: model.Task, **more: Any) -> T:
    """A record with the fields of a task, without its payload and result, and `more`."""
    return record_of(
        kind,
        task,
        about=about_task(task, engine.kernel.value_store),
        state=str(task.shown_state),
        wake_at=None if (at := shown_wake_at(task)) is None else Instant.of(at),
        holds=[word for bit, word in HOLDS.items() if task.hold & bit],
        root_id=task.root_id or None,
        policy=decode_shown(task.policy),
        progress=without_steps(decode(task.progress)),
        error=decode(task.error),
        **more,
    )


async def task_records(engine: Engine, tasks: Sequence[model.Task]) -> list[Task]:
    """Records of tasks for a list, with their tags."""
    tags = await engine.kernel.store.search.list_tags([task.id for task in tasks]) if tasks else {}
    return [task_record(Task, engine, task, tags=decode_tags(tags.get(task.id, {}))) for task in tasks]


async def task_detail(engine: Engine, task: model.Task, kind: type[T] = TaskDetail, **more: Any) -> T:  # type: ignore[assignment]
    """Everything about a task that was read already."""
    task = await engine.kernel.open_values(task)
    tags = await engine.kernel.store.search.list_tags([task.id])
    return task_record(
        kind,
        engine,
        task,
        tags=decode_tags(tags.get(task.id, {})),
        payload=decode_shown(task.payload),
        result=decode_shown(task.result),
        checkpoint=without_key(decode_shown(task.checkpoint, decode)),
        why=why_task(task, await engine.kernel.reads.explain(task)),
        moves=[move_record(move) for move in await engine.kernel.store.log.list_moves(task.id)],
        lines=[
            record_of(TaskLogLine, line, details=line.said or None)
            for line in await engine.kernel.store.log.list_lines(task.id, LINES)
        ],
        **more,
    )
