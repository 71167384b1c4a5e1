"""Comparison of a repeated request with the task or run that its idempotency key identifies.

Requests are equal if kind, name, task list and payload are. Options such as priority or delay are not compared, because they
change after the request or depend on its time. A request whose task or run was pruned counts as repeated.
"""

from __future__ import annotations

from treadle.kernel.store.ports import Store
from treadle.kernel.store.value_store import ValueStore
from treadle.model.errors import IdempotencyKeyReused
from treadle.model.runs import Run
from treadle.model.tasks import NewTask, Task


def is_same_request(value_store: ValueStore, one: Task | NewTask, other: NewTask) -> bool:
    """Whether two requests are for the same task; tasks with one unique key represent each other."""
    same_key = other.unique_key is not None and one.unique_key == other.unique_key
    return same_key or (one.lane == other.lane and value_store.same(one.payload, other.payload))


async def check_task_repeat(store: Store, value_store: ValueStore, task: NewTask, owner_id: str) -> None:
    """Raise `IdempotencyKeyReused` if the task with the key came from a different request.

    A live task with the same unique key represents both requests. The payload of a revived task may have been edited since.
    """
    stored = await store.tasks.find(owner_id)
    if stored is None or is_same_request(value_store, stored, task):
        return
    if stored.lane == task.lane and any(move.move == "requeue" for move in await store.log.list_moves(owner_id)):
        return
    raise IdempotencyKeyReused(task.idempotency_key or "", "task", owner_id)


async def check_run_repeat(store: Store, value_store: ValueStore, run: Run, owner_id: str) -> None:
    """Raise `IdempotencyKeyReused` if the run with the key came from a different request; versions are not compared."""
    stored = await store.runs.find(owner_id)
    if stored is None:
        return
    same = (stored.kind, stored.workflow, stored.task_list) == (run.kind, run.workflow, run.task_list)
    if not same or not value_store.same(stored.inputs, run.inputs):
        raise IdempotencyKeyReused(run.idempotency_key or "", "run", owner_id)
