"""System status from a few indexed reads.

The cost depends on the backlog and the dead letters, never on history: finished tasks are not counted and the store is not
measured. `problems.py` finds the problems in it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from treadle.api.system import ScheduleFiring
from treadle.kernel.core import Core, Service
from treadle.kernel.queue.why import OPEN_SERVICE, is_own, shown_servers
from treadle.kernel.store.ports import Store
from treadle.kernel.store.queries import DeadLetterFilter, QueueDepth, RunFilter
from treadle.kernel.store.records import EffectFilter, RecordFilter
from treadle.model.errors import UnreadableValue
from treadle.model.external import RAISES_IN_ROW, ExternalProductionRecord
from treadle.model.names import FUNCTION, NOTIFY
from treadle.model.states import APPROVAL, EXTERNAL, OBJECTIVE
from treadle.model.stored import read
from treadle.model.tasks import LIVE_SERVER_STATES

if TYPE_CHECKING:
    from treadle.api.schedules import Schedule
    from treadle.api.watchers import Watcher
    from treadle.kernel.schedules.service import Schedules
    from treadle.kernel.watchers.service import Watchers
    from treadle.model.lists import QueueRule, TaskList
    from treadle.model.tasks import Server, Task

FIRINGS = 5
_SCHEDULES = 1000
_JOBS = 200
UNKNOWN = 100
"""Limit on the effects of unknown outcome that are looked for."""
FAILING = 20
"""Limit on the failing functions, and on the failing tasks of the engine, that are looked for."""


@dataclass(frozen=True, slots=True)
class SystemStatus:
    """The system at `now`; durations are milliseconds."""

    now: int
    latency_for: int
    """Duration of a small read from the store."""
    overdue_for: int
    """Age of the oldest due task."""
    depths: tuple[QueueDepth, ...]
    runs: dict[str, int]
    dead_letters: int
    approvals: int
    """Approvals that wait for a decision."""
    blocked_objectives: int
    failing_jobs: tuple[str, ...]
    """External jobs with last polls that raised or lost their workers."""
    servers: tuple[Server, ...]
    next_firings: list[ScheduleFiring]
    schedules: tuple[Schedule, ...] = ()
    watchers: tuple[Watcher, ...] = ()
    lists: tuple[TaskList, ...] = ()
    """Task lists with settings."""
    rates: tuple[QueueRule, ...] = ()
    """Queues with a rate."""
    undelivered: int = 0
    """Notifications (of alerts and approvals) among the dead letters."""
    failing: tuple[Task, ...] = ()
    """Functions and tasks of the engine that wait after an error."""
    unknown: tuple[int, ...] = ()
    """When the last effects became unknown, newest first."""
    damage: tuple[str, ...] = ()
    """Signs of damage of the store that are found without reading all of it."""

    @property
    def users_depths(self) -> list[QueueDepth]:
        """Depths of queues with user work (not the engine's own)."""
        return [depth for depth in self.depths if not is_own(depth.queue)]

    @property
    def engine_tasks(self) -> int:
        """Number of live tasks of the engine itself."""
        return sum(depth.ready + depth.running + depth.waiting + depth.blocked for depth in self.depths if is_own(depth.queue))

    @property
    def server_states(self) -> dict[str, int]:
        """Number of servers by displayed state."""
        return dict(sorted(Counter(server.state for server in self.servers).items()))

    @property
    def live_servers(self) -> int:
        """Number of live workers that work; an open HTTP server is listed only to show that it is open."""
        return sum(server.state in LIVE_SERVER_STATES and server.service_name != OPEN_SERVICE for server in self.servers)

    @property
    def open_servers(self) -> list[str]:
        """Names of live HTTP servers that require no token."""
        live = [server for server in self.servers if server.state in LIVE_SERVER_STATES]
        return sorted(f"{server.name} on {server.host}" for server in live if server.service_name == OPEN_SERVICE)


class StatusReads(Service):
    """The status of one namespace. One read runs at a time; callers who ask meanwhile share the next one.

    A read counts all live tasks, so that many callers of a large queue would otherwise occupy the store with the same work.
    Nobody gets a status that was read before they asked.
    """

    def __init__(self, core: Core, schedules: Schedules, watchers: Watchers) -> None:
        super().__init__(core)
        self._schedules = schedules
        self._watchers = watchers
        self._reading = asyncio.Lock()
        self._begun = 0
        self._known: SystemStatus | None = None

    async def read(self) -> SystemStatus:
        """Return the status as of now."""
        begun = self._begun
        async with self._reading:
            status = self._known
            if status is None or self._begun == begun:  # none that began since has succeeded
                self._begun, self._known = self._begun + 1, None
                self._known = status = await self._read()
            return status

    async def _read(self) -> SystemStatus:
        """Read the current status."""
        asked_at = self._clock.monotonic()
        await self._store.log.find_last_seq()
        latency_for = round((self._clock.monotonic() - asked_at) * 1000)
        now = await self._store.now()
        dead, _, _ = await self._store.dead_letters.count(DeadLetterFilter(namespace=self._namespace))
        undelivered, _, _ = (
            await self._store.dead_letters.count(DeadLetterFilter(namespace=self._namespace, kind=NOTIFY)) if dead else (0, 0, 0)
        )
        schedules = (await self._schedules.list(limit=_SCHEDULES)).schedules
        firing = [
            ScheduleFiring(schedule.name, schedule.next_at)
            for schedule in schedules
            if schedule.state == "active" and schedule.next_at is not None
        ]
        depths = tuple(depth for depth in await self._store.tasks.list_depths() if depth.queue.namespace == self._namespace)
        rules = [
            rule
            for rule in await self._store.operators.list_queue_rules()
            if rule.rate is not None and rule.queue.namespace == self._namespace
        ]
        return SystemStatus(
            now=now,
            latency_for=latency_for,
            overdue_for=await self._store.health.overdue_for(),
            depths=depths,
            runs=await self._store.runs.count(RunFilter(namespace=self._namespace)),
            dead_letters=dead,
            approvals=(await self._store.records.count(self._namespace, APPROVAL.entity)).get("pending", 0),
            blocked_objectives=(await self._store.records.count(self._namespace, OBJECTIVE.entity)).get("BLOCKED", 0),
            failing_jobs=tuple(await _failing_jobs(self._store, self._namespace)),
            servers=tuple(shown_servers(await self._store.servers.list_all(self._namespace), now)),
            next_firings=sorted(firing, key=lambda firing: (firing.at, firing.schedule))[:FIRINGS],
            schedules=tuple(schedules),
            watchers=tuple((await self._watchers.list(limit=_SCHEDULES)).watchers),
            lists=tuple(
                task_list for task_list in await self._store.operators.list_lists() if task_list.namespace == self._namespace
            ),
            rates=tuple(rules),
            undelivered=undelivered,
            damage=tuple(await self._store.health.list_damage(pages=False)),
            failing=tuple(await _failing(self._store, depths)),
            unknown=tuple(
                effect.unknown_at or 0 for effect in await self._store.records.list_unknown(EffectFilter(self._namespace), UNKNOWN)
            ),
        )


async def _failing(store: Store, depths: Sequence[QueueDepth]) -> list[Task]:
    waiting = [depth for depth in depths if depth.waiting]
    functions = [depth.queue_id for depth in waiting if depth.queue.kind == FUNCTION]
    own = [depth.queue_id for depth in waiting if is_own(depth.queue)]
    ids = [task_id for queues in (functions, own) if queues for task_id in await store.tasks.list_failing(queues, FAILING)]
    return [task for task in (await store.tasks.find_many(ids) if ids else ()) if not task.finished]


async def _failing_jobs(store: Store, namespace: str) -> list[str]:
    job_ids = []
    for stored in await store.records.list_matching(RecordFilter(EXTERNAL.entity, namespace, live=True), _JOBS):
        try:
            record = read(ExternalProductionRecord, stored.document)
        except UnreadableValue:  # it is listed as unreadable
            continue
        if record.raised_in_row >= RAISES_IN_ROW or record.backs_off:
            job_ids.append(record.external_job_id)
    return job_ids
