"""The lease sidecar's access to the store, for a worker process that is stuck or dead. Runs in the sidecar's process."""

from __future__ import annotations

import asyncio

from treadle.kernel.store.lookups import every_task
from treadle.kernel.store.ports import SERVERS
from treadle.kernel.store.process import SystemClock
from treadle.kernel.store.queries import Renewal, TaskFilter, Touch
from treadle.kernel.store.units import Unit, Verdict, returned
from treadle.kernel.takeover import declare_dead
from treadle.model.states import TaskState
from treadle.model.tasks import PROCESS, Claim
from treadle.stores import make_store
from treadle.workers.lease_sidecar.process import Claims


class SidecarStore:
    """An `Actor` on the store of a URL, for the claims of one server."""

    def __init__(self, url: str, owner_id: str, lease_for: int, fast_takeover: bool = True) -> None:
        """`fast_takeover`: whether its started work may be taken over before its leases expire."""
        self._owner_id = owner_id
        self._fast_takeover = fast_takeover
        self._lease_for = lease_for
        self._loop = asyncio.new_event_loop()
        self._store = make_store(url, SystemClock())
        try:
            self._loop.run_until_complete(self._store.open(migrate=False))
        except BaseException:
            self._loop.close()
            raise
        self._connection = self._store.servers.lease_connection()

    def renew(self, claims: Claims) -> set[str]:
        """Renew the leases and record a heartbeat; return the ids of the renewed tasks."""
        extended = self._connection.renew([Renewal(self._claim(*claim)) for claim in claims], self._lease_for)
        self._loop.run_until_complete(self._store.servers.touch([Touch(self._owner_id)]))
        return extended

    def release(self, started: Claims, waiting: Claims | None = None) -> int:
        """Return the server's tasks that have not started, or of these only the waiting ones, to the queue; return their number."""
        only = None if waiting is None else {self._claim(*claim) for claim in waiting}
        return self._loop.run_until_complete(self._release({self._claim(*claim) for claim in started}, only))

    async def _release(self, started: set[Claim], only: set[Claim] | None) -> int:
        units = [
            Unit(task.claim, returned(task, "its worker died, or was stopped, before its handler started"))
            async for task in every_task(self._store, TaskFilter(held=True))
            if task.owner_id == self._owner_id and task.state == TaskState.PENDING
            if task.claim not in started and (only is None or task.claim in only)
        ]
        answers = await self._store.commit(units) if units else []
        queue_ids = {queue_id for answer in answers for queue_id in answer.queue_ids}
        if queue_ids:
            await self._store.notify(sorted(queue_ids))
        return sum(answer.verdict is Verdict.DONE for answer in answers)

    def declare_dead(self) -> None:
        """Expire the server's leases and record its end, if others may take over so soon."""
        if self._fast_takeover:
            self._loop.run_until_complete(self._declare_dead())

    async def _declare_dead(self) -> None:
        await declare_dead(self._store, {self._owner_id: PROCESS})
        await self._store.notify((SERVERS,))

    def close(self) -> None:
        """Close the store."""
        self._connection.close()
        self._loop.run_until_complete(self._store.close())
        self._loop.close()

    def _claim(self, task_id: str, version: int) -> Claim:
        return Claim(task_id, version, self._owner_id)
