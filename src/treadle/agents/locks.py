"""Locks on keys for agents; each lock is a task of kind `lock` (D54)."""

from __future__ import annotations

from dataclasses import asdict, fields

from treadle.agents.connection import Connection
from treadle.agents.entities import LockDefinition, LockMetaData
from treadle.kernel.queue.locks import Lock


class Locking(Connection):
    """The lock methods of a store: only the object that acquired a lock may extend and release it."""

    _own_locks: dict[str, Lock]

    def acquire_lock(self, key: str, duration_ms: int, meta: LockMetaData | None = None) -> bool:
        lock = self.run(self.locks.acquire(key, duration_ms, None if meta is None else asdict(meta)))
        return self._keep(key, lock)

    def extend_lock(self, key: str, duration_ms: int) -> bool:
        held = self._locks_here().get(key)
        return held is not None and self._keep(key, self.run(self.locks.extend(held, duration_ms)))

    def release_lock(self, key: str) -> bool:
        held = self._locks_here().pop(key, None)
        return held is not None and self.run(self.locks.release(held))

    def check_lock(self, key: str) -> LockDefinition | None:
        found = self.run(self.locks.find(key))
        if found is None:
            return None
        acquired_at, expires_at, details = found
        known = {each.name for each in fields(LockMetaData)}
        meta = LockMetaData(**{name: value for name, value in details.items() if name in known})
        return LockDefinition(key, acquired_at, expires_at, meta)

    def _locks_here(self) -> dict[str, Lock]:
        known: dict[str, Lock] = self.__dict__.setdefault("_own_locks", {})
        return known

    def _keep(self, key: str, lock: Lock | None) -> bool:
        if lock is not None:
            self._locks_here()[key] = lock
        return lock is not None
