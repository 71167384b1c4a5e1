"""The outcome of a submission, read from the store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from treadle import Engine
from treadle.kernel.store.ports import Store
from treadle.kernel.store.queries import TaskFilter
from treadle.model.runs import Run
from treadle.model.tasks import Task
from treadle.model.values import decode


@dataclass(frozen=True, slots=True)
class Found:
    """A task or a run as it ended, with its tasks and what their logs say."""

    id: str
    state: str
    result: Any
    error: str | None
    tasks: Sequence[Task]
    root_id: str
    finished_at: int | None
    unknown: int
    """How often the log says that nobody knows whether an effect was made."""
    inbox: int = 0
    """Results that nobody has taken in."""
    key: str | None = None


async def find_task(store: Store, engine: Engine, task_id: str) -> Found | None:
    """The task, with its values opened."""
    task = await store.tasks.find(task_id)
    return None if task is None else await read_task(store, engine, task)


async def read_task(store: Store, engine: Engine, task: Task) -> Found:
    """The same of one that was read."""
    task = await engine.kernel.value_store.unpack_task(task)
    unknown = await _count_unknown(store, [task])
    return Found(task.id, task.state, decode(task.result), task.error, [task], task.root_id, task.finished_at, unknown)


async def find_run(store: Store, engine: Engine, run_id: str) -> Found | None:
    """The run, with its outputs; of one that went on as another, what that came to."""
    run = await store.runs.find(run_id)
    return None if run is None else await read_run(store, engine, run)


async def read_run(store: Store, engine: Engine, run: Run) -> Found:
    """The same of one that was read."""
    result = (await engine.kernel.runs.outputs(run)) if run.state == "completed" else None
    tasks = await store.tasks.list_matching(TaskFilter(run_id=run.id), 1000)
    inbox = len(await store.runs.list_steps(run.id, None, 10, with_inbox=True))
    unknown = await _count_unknown(store, tasks)
    return Found(run.id, run.state, result, run.error, tasks, run.root_id, run.finished_at, unknown, inbox, run.idempotency_key)


async def _count_unknown(store: Store, tasks: Sequence[Task]) -> int:
    count = 0
    for task in tasks:
        count += sum(transition.transition == "tool_call.unknown" for transition in await store.log.list_transitions(task.id))
    return count
