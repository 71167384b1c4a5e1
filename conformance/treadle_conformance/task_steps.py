"""Common steps of the tests of tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import Executor
from typing import Any

from treadle.kernel.store.operator_ports import LeaseConnection
from treadle.kernel.store.ports import Store
from treadle.kernel.store.queries import TaskFilter
from treadle.kernel.store.units import Finish, Requeue, Seen, Settlement, Unit, UnitAnswer, Verdict
from treadle.model.names import DEFAULT_LIST, DEFAULT_NAMESPACE, HANDLER, QueueKey
from treadle.model.states import TaskState
from treadle.model.tasks import Claim, NewTask, Task
from treadle.testing import SeededIds

MINUTE = 60_000
WORK = QueueKey(DEFAULT_NAMESPACE, HANDLER, DEFAULT_LIST, "work")
OTHER = QueueKey(DEFAULT_NAMESPACE, HANDLER, DEFAULT_LIST, "other")
UNKNOWN_ID = "00000000-0000-7000-8000-000000000000"

ids = SeededIds(seed=2)


def new_task(queue: QueueKey = WORK, **fields: Any) -> NewTask:
    """A task to be stored, with an id of its own that sorts after those made before it."""
    return NewTask(**{"id": ids.new_id(), "queue": queue} | fields)


async def put(store: Store, *tasks: NewTask) -> UnitAnswer:
    """Store the tasks in one unit."""
    return (await store.commit([Unit(tasks=tasks)]))[0]


async def put_one(store: Store, queue: QueueKey = WORK, **fields: Any) -> NewTask:
    task = new_task(queue, **fields)
    answer = await put(store, task)
    assert answer.verdict == Verdict.DONE
    return task


async def claim(store: Store, *queues: QueueKey, owner: str = "owner-1", lease_for: int = MINUTE, limit: int = 1000) -> list[Task]:
    """Take from the queues, by default from the one in which `put` puts."""
    queue_ids = await store.tasks.queue_ids(queues or (WORK,))
    return await store.tasks.claim(list(queue_ids.values()), owner, lease_for, limit)


async def claim_one(store: Store, *queues: QueueKey, owner: str = "owner-1", lease_for: int = MINUTE) -> Task:
    """Take the one task that is first in line; there has to be one."""
    (task,) = await claim(store, *queues, owner=owner, lease_for=lease_for, limit=1)
    return task


async def put_and_claim(store: Store, *, owner: str = "owner-1", lease_for: int = MINUTE, **fields: Any) -> Task:
    """A task that was just stored and taken."""
    task = new_task(**fields)
    await put(store, task)
    taken = await claim_one(store, task.queue, owner=owner, lease_for=lease_for)
    assert taken.id == task.id
    return taken


async def commit_one(store: Store, guard: Claim | Seen | None, settlement: Settlement | None, *tasks: NewTask) -> UnitAnswer:
    return (await store.commit([Unit(guard, settlement, tasks)]))[0]


async def settle(store: Store, guard: Claim | Seen, settlement: Settlement, *tasks: NewTask) -> Verdict:
    """Return the answer to the one unit."""
    return (await commit_one(store, guard, settlement, *tasks)).verdict


def succeed(result: str = "{}") -> Finish:
    return Finish("succeed", TaskState.COMPLETED, result=result)


def fail(error: str = '{"code":"boom"}') -> Finish:
    return Finish("fail", TaskState.FAILED, error=error, error_code="boom", fingerprint="f00d")


def cancel(actor: str = "ann") -> Finish:
    return Finish("cancel", TaskState.CANCELED, actor=actor)


def requeue(task: Task, transition: str = "wait", **fields: Any) -> Requeue:
    """The task as it is, without an owner."""
    values = {"state": task.state, "attempt": task.attempt, "failures": task.failures, "takeovers": task.takeovers}
    return Requeue(transition, **values | {"blocked_by": task.blocked_by} | fields)


def seen(task: Task) -> Seen:
    return Seen(task.id, task.version, task.claim_version)


async def get(store: Store, task_id: str) -> Task:
    task = await store.tasks.find(task_id)
    assert task is not None
    return task


async def everything(store: Store) -> list[Any]:
    """Return all that the store has about tasks, to show that a commit changed nothing."""
    tasks = await store.tasks.list_matching(TaskFilter(), 100_000)
    histories = await store.log.list_histories(None, 100_000)
    return [tasks, histories]


def in_order(tasks: Iterable[Task | NewTask]) -> list[str]:
    return [task.id for task in tasks]


def transitions_of(transitions: Iterable[Any]) -> list[str]:
    return [transition.transition for transition in transitions]


class Line:
    """A lease line in a thread of its own, as the lease renewer uses it, with methods that a test can await."""

    def __init__(self, line: LeaseConnection, thread: Executor) -> None:
        self._line, self._thread = line, thread

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        def call(*arguments: Any) -> Awaitable[Any]:
            return asyncio.get_running_loop().run_in_executor(self._thread, getattr(self._line, name), *arguments)

        return call
