"""The system as a whole: its time, throughput and status, and the reason for the state of anything in it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from treadle.api.system import Status, StoreState, Throughput, Time
from treadle.api.tasks import TaskCounts, Why
from treadle.api.wire import Instant
from treadle.kernel.core import Core, Service
from treadle.kernel.reads.records import why_run, why_task
from treadle.kernel.reads.service import Reads
from treadle.kernel.store.lookups import find_by_name_or_id
from treadle.model.errors import RunNotFound, TaskNotFound
from treadle.model.records import Record
from treadle.model.states import SCHEDULE, WATCHER
from treadle.version import VERSION

if TYPE_CHECKING:
    from treadle.kernel.metrics.throughput import ThroughputReads
    from treadle.kernel.runs.reads import RunReads
    from treadle.kernel.status import StatusReads


class System(Service):
    """The state of one namespace and its store."""

    def __init__(
        self,
        core: Core,
        reads: Reads,
        run_reads: Callable[[], RunReads],
        throughput: Callable[[], ThroughputReads],
        status: Callable[[], StatusReads],
        explain: Callable[[Record], Awaitable[Why | None]],
        open_access: Callable[[], bool | None],
    ) -> None:
        """`explain` gives the reason for the state of a record of an extension.

        `open_access` is whether this process serves HTTP to callers without a token; None: it serves no HTTP.
        """
        super().__init__(core)
        self._reads = reads
        self._run_reads = run_reads
        self._throughput = throughput
        self._status = status
        self._explain = explain
        self._open_access = open_access

    async def time(self) -> Time:
        return Time(Instant.of(await self._store.now()))

    async def pace(self) -> Throughput:
        return await self._throughput().last_hour()

    async def status(self) -> Status:
        from treadle.kernel.problems import find_problems

        status, open_access = await self._status().read(), self._open_access()
        problems = find_problems(status)
        depths = status.users_depths
        return Status(
            health="degraded" if problems else "ok",
            reasons=[problem.line for problem in problems],
            problems=problems,
            version=VERSION,
            namespace=self._namespace,
            now=Instant.of(status.now),
            store=StoreState(self._store.url.partition(":")[0], status.latency_for, status.overdue_for),
            tasks=TaskCounts(
                ready=sum(depth.ready for depth in depths),
                running=sum(depth.running for depth in depths),
                waiting=sum(depth.waiting for depth in depths),
                blocked=sum(depth.blocked for depth in depths),
                oldest_due_at=min(
                    (Instant.of(depth.oldest_due_at) for depth in depths if depth.oldest_due_at is not None), default=None
                ),
            ),
            engine_tasks=status.engine_tasks,
            runs=dict(sorted(status.runs.items())),
            dead_letters=status.dead_letters,
            approvals=status.approvals,
            blocked_objectives=status.blocked_objectives,
            servers=status.server_states,
            live_servers=status.live_servers,
            lost_servers=status.server_states.get("lost", 0),
            next_firings=status.next_firings,
            access=None if open_access is None else "open" if open_access else "token",
            open_servers=status.open_servers,
        )

    async def why(self, any_id: str) -> Why:
        for find in (self._why_named, self._why_task, self._why_run, self._why_record):
            if (why := await find(any_id)) is not None:
                return why
        raise TaskNotFound(any_id, "task or run")

    async def _why_named(self, name: str) -> Why | None:
        """Explain the live schedule or watcher of that name, or the schedule or watcher of that id, by its task."""
        from treadle.kernel.triggers import ACTIVE, PAUSED

        for entity in (SCHEDULE, WATCHER):
            record = await find_by_name_or_id(self._store, self._namespace, entity.entity, name)
            if record is None:
                continue
            why = None if record.task_id is None else await self._why_task(record.task_id)
            if why is not None and record.state == ACTIVE:
                return why
            resume = f"; resume it with `treadle {record.entity}s resume {record.name}`" if record.state == PAUSED else ""
            return Why(record.id, record.name or "", record.state, record.state, f"the {record.entity} is {record.state}{resume}")
        return None

    async def _why_task(self, task_id: str) -> Why | None:
        try:
            task = await self._reads.get_task(task_id)
        except TaskNotFound:
            return None
        return why_task(task, await self._reads.explain(task))

    async def _why_run(self, run_id: str) -> Why | None:
        try:
            run = await self._run_reads().get_run(run_id)
        except RunNotFound:
            return None
        return why_run(await self._run_reads().get_current(run), await self._run_reads().why(run))

    async def _why_record(self, record_id: str) -> Why | None:
        record = await self._store.records.find(record_id)
        if record is None or record.namespace != self._namespace:
            return None
        if (why := await self._explain(record)) is not None:
            return why
        return None if record.task_id is None else await self._why_task(record.task_id)
