"""Locks of agents: each is a task of kind `lock` (D54), which expires when its time comes.

A lock is held as the guard of its task, the versions that only its holder knows, under which it is extended and released.
"""

from __future__ import annotations

from typing import Any

from treadle.kernel.store.committer import Committer, Stale
from treadle.kernel.store.ports import Store
from treadle.kernel.store.queries import TaskFilter
from treadle.kernel.store.units import Finish, Requeue, Seen, Settlement, Unit, Verdict
from treadle.model.clock import milliseconds
from treadle.model.errors import Contended
from treadle.model.ids import Ids
from treadle.model.names import DEFAULT_NAMESPACE, ENGINE_LIST, LOCK, QueueKey, check_key
from treadle.model.states import TaskState
from treadle.model.tasks import NewTask, Task
from treadle.model.values import Json, decode, encode

_TRIES = 5
_PREFIX = "lock:"


class Locks:
    """The locks of one namespace."""

    def __init__(self, store: Store, committer: Committer, ids: Ids, *, namespace: str = DEFAULT_NAMESPACE) -> None:
        self._store = store
        self._committer = committer
        self._ids = ids
        self._namespace = namespace

    async def acquire(self, key: str, duration_ms: int, meta: dict[str, Json] | None = None) -> Seen | None:
        """Take the lock for the duration if it is free or expired; otherwise return None without waiting."""
        unique_key = _PREFIX + check_key(key, "lock key")
        hold_for = milliseconds(duration_ms, "duration", positive=True, unit=1)

        async def attempt() -> Seen | None:
            task = NewTask(
                id=self._ids.new_id(),
                queue=QueueKey(self._namespace, LOCK, ENGINE_LIST, LOCK),
                payload=encode({"key": key, "meta": meta or {}}, "lock"),
                delay=hold_for,
                unique_key=unique_key,
            )
            answer = await self._committer.submit(Unit(tasks=(task,)))
            holder = answer.existing.get(unique_key)
            if holder is None:
                return Seen(task.id, 0, 0)
            current = await self._store.tasks.find(holder)
            if current is None or current.finished:
                raise Stale  # released between the commit and this read
            if not self._free(current, await self._store.now()):
                return None
            if (lock := await self._transition(Seen.of(current), _hold(current, hold_for))) is None:
                raise Stale
            return lock

        try:
            return await self._committer.transact(attempt, f"acquire the lock {key}", tries=_TRIES)
        except Contended:
            return None  # others acquired and released it meanwhile

    async def extend(self, lock: Seen, duration_ms: int) -> Seen | None:
        """Extend the lock to the duration from now; None if no longer held."""
        task = await self._store.tasks.find(lock.task_id)
        if task is None or task.finished or Seen.of(task) != lock or self._free(task, await self._store.now()):
            return None
        return await self._transition(lock, _hold(task, milliseconds(duration_ms, "duration", positive=True, unit=1)))

    async def release(self, lock: Seen) -> bool:
        """Release the lock; False if no longer held."""
        finish = Finish("succeed", TaskState.COMPLETED, actor="lock")
        return (await self._committer.submit(Unit(lock, finish))).verdict is Verdict.DONE

    async def find(self, key: str) -> tuple[int, int, dict[str, Any]] | None:
        """Return when the lock was taken, when it expires, and its holder's metadata; None if it is free."""
        now = await self._store.now()
        for task in await self._list(1000):
            if task.unique_key == _PREFIX + key and not self._free(task, now):
                return task.created_at, task.wake_at or now, decode(task.payload)["meta"]
        return None

    async def tidy(self, older_for: int = 3_600_000, limit: int = 1000) -> int:
        """End the tasks of up to `limit` locks that expired at least `older_for` milliseconds ago; returns their number."""
        now = await self._store.now()
        expired = [task for task in await self._list(limit) if self._free(task, now - older_for)]
        old = [task for task in expired if task.due_at <= now - older_for]
        return sum([await self.release(Seen.of(task)) for task in old])

    async def _list(self, limit: int) -> list[Task]:
        """Return locks, held or expired."""
        wanted = TaskFilter(states=(TaskState.PENDING,), namespace=self._namespace, kind=LOCK)
        return await self._store.tasks.list_matching(wanted, limit)

    @staticmethod
    def _free(task: Task, now: int) -> bool:
        """Whether the lock has expired, woken or not."""
        return task.wake_at is None or task.wake_at <= now

    async def _transition(self, seen: Seen, settlement: Settlement) -> Seen | None:
        answer = await self._committer.submit(Unit(seen, settlement))
        if answer.verdict is not Verdict.DONE:
            return None
        return Seen(seen.task_id, seen.version + 1, seen.claim_version)


def _hold(task: Task, hold_for: int) -> Requeue:
    return Requeue("wait", TaskState.PENDING, task.attempt, task.failures, task.takeovers, delay=hold_for, actor="lock")
