"""Locks on keys, as agents ask for them; each is a task of kind `lock` (D54)."""

from __future__ import annotations

from dataclasses import asdict, fields

from treadle.agents.connection import Connection
from treadle.agents.entities import LockDefinition, LockMetaData
from treadle.kernel.queue.locks import Lock


class Locking(Connection):
    """The part of a store that is about locks: who acquired one here may extend and release it here."""

    _own_locks: dict[str, Lock]

    def acquire_lock(self, key: str, duration_ms: int, meta: LockMetaData | None = None) -> bool:
        """Take the lock if it is free or has run out; never waits."""
        lock = self.run(self.locks.acquire(key, duration_ms, None if meta is None else asdict(meta)))
        return self._keep(key, lock)

    def extend_lock(self, key: str, duration_ms: int) -> bool:
        """Hold the lock for that long from now; False if it is not held here any more."""
        held = self._locks_here().get(key)
        return held is not None and self._keep(key, self.run(self.locks.extend(held, duration_ms)))

    def release_lock(self, key: str) -> bool:
        """Let the lock go; False if it was not held here any more."""
        held = self._locks_here().pop(key, None)
        return held is not None and self.run(self.locks.release(held))

    def check_lock(self, key: str) -> LockDefinition | None:
        """The lock, if somebody holds it."""
        found = self.run(self.locks.find(key))
        if found is None:
            return None
        acquired_at, expires_at, said = found
        known = {each.name for each in fields(LockMetaData)}
        meta = LockMetaData(**{name: value for name, value in said.items() if name in known})
        return LockDefinition(key, acquired_at, expires_at, meta)

    def _locks_here(self) -> dict[str, Lock]:
        known: dict[str, Lock] = self.__dict__.setdefault("_own_locks", {})
        return known

    def _keep(self, key: str, lock: Lock | None) -> bool:
        if lock is not None:
            self._locks_here()[key] = lock
        return lock is not None
