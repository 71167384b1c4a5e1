"""The presence of remote workers: their server rows, kept alive by every request that they make."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass

from msgspec.structs import replace

from treadle.kernel.store.ports import Store
from treadle.kernel.store.queries import Touch
from treadle.model.clock import Clock
from treadle.model.errors import WorkerNotFound
from treadle.model.tasks import Server

_MOST_KNOWN = 10_000
"""Workers that a process remembers; it reads the rows of all others again."""


@dataclass(slots=True)
class _Known:
    """A worker as this process knows it: its row, the last touch, and the settlements to add to its counts."""

    server: Server
    touched_at: float
    settled: Counter[str]


class Presence:
    """The remote workers of one namespace that recently made requests to this process."""

    def __init__(self, store: Store, clock: Clock, namespace: str) -> None:
        self._store = store
        self._namespace = namespace
        self._clock = clock
        self._known: dict[str, _Known] = {}

    async def get(self, worker_id: str) -> Server:
        """Return the worker's row, possibly slightly out of date; or raise `WorkerNotFound`."""
        known = self._known.get(worker_id) or self._remember(await self._find(worker_id))
        return known.server

    async def alive(self, worker_id: str) -> Server:
        """Return the worker's row, after storing a heartbeat if one is due."""
        known = self._known.get(worker_id)
        return known.server if known is not None and not self._is_due(known) else await self.touch(worker_id)

    async def touch(self, worker_id: str, running: int | None = None, state: str | None = None) -> Server:
        """Store a heartbeat and the counts since the last one; or raise `WorkerNotFound`."""
        known = self._known.get(worker_id) or await self._find(worker_id)
        found = await self._store.touch_servers([replace(self._touch_of(known), running=running, state=state)])
        if not found:
            self._known.pop(worker_id, None)
            raise WorkerNotFound(worker_id)
        self._learn(found[0])
        return found[0]

    async def touch_all(self, worker_ids: Collection[str]) -> list[str]:
        """Store the due heartbeats of waiting workers; return those that have left through another process."""
        due = [known for each in worker_ids if (known := self._known.get(each)) is not None and self._is_due(known)]
        found = {each.id: each for each in await self._store.touch_servers([self._touch_of(known) for known in due])} if due else {}
        gone = []
        for known in due:
            worker_id = known.server.id
            if (server := found.get(worker_id)) is not None:
                self._learn(server)
            else:
                self.forget(worker_id)
                gone.append(worker_id)
        return gone

    def note_settled(self, worker_id: str, move: str) -> None:
        """Count a settlement for the worker's next heartbeat."""
        if (known := self._known.get(worker_id)) is not None:
            known.settled[move] += 1

    def forget(self, worker_id: str) -> None:
        """Forget a worker that has left."""
        self._known.pop(worker_id, None)

    def clear(self) -> None:
        """Forget all workers."""
        self._known.clear()

    def _is_due(self, known: _Known) -> bool:
        """Return whether a heartbeat is due: three times per declared interval."""
        return self._clock.monotonic() - known.touched_at >= known.server.heartbeat_every_for / 3000

    async def _find(self, worker_id: str) -> _Known:
        """Read the row of a worker that is new to this process; a server that hosts workers itself does not count."""
        for server in await self._store.list_servers(self._namespace):
            if server.id == worker_id and server.pid == 0:
                return _Known(server, float("-inf"), Counter())
        raise WorkerNotFound(worker_id)

    def _touch_of(self, known: _Known) -> Touch:
        """Return the heartbeat to store, and reset the counts."""
        known.touched_at = self._clock.monotonic()
        settled, known.settled = known.settled, Counter()
        failed = settled.pop("fail", 0)
        return Touch(known.server.id, None, settled.total() - settled["release"] + failed, failed)

    def _learn(self, server: Server) -> None:
        known = self._known.get(server.id)
        self._remember(_Known(server, self._clock.monotonic(), Counter() if known is None else known.settled))

    def _remember(self, known: _Known) -> _Known:
        """Remember the worker, and forget the least recent ones beyond the limit."""
        self._known.pop(known.server.id, None)
        while len(self._known) >= _MOST_KNOWN:
            self._known.pop(next(iter(self._known)))
        self._known[known.server.id] = known
        return known
