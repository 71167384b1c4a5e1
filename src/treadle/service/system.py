"""Calls about the system as a whole, on an engine."""

from __future__ import annotations

from treadle.api.system import Status, StoreState, SystemApi, TaskCounts, Throughput, Time
from treadle.api.tasks import Why
from treadle.api.wire import Instant, record_of
from treadle.kernel.reads.records import why_run, why_task
from treadle.kernel.store.pages import find_by_name_or_id
from treadle.model.errors import RunNotFound, TaskNotFound
from treadle.model.states import OBJECTIVE, SCHEDULE, WATCHER
from treadle.service.group import Group
from treadle.version import VERSION


class System(Group, SystemApi):
    """See `SystemApi`."""

    async def time(self) -> Time:
        return Time(Instant.of(await self.engine.kernel.store.now()))

    async def pace(self) -> Throughput:
        return record_of(Throughput, await self.engine.kernel.throughput.last_hour())

    async def status(self) -> Status:
        from treadle.kernel.problems import find_problems

        engine, namespace = self.engine, self.engine.kernel.settings.namespace
        found = await engine.kernel.trigger_services.status.read()
        problems = find_problems(found)
        depths = found.users_depths
        return Status(
            health="degraded" if problems else "ok",
            reasons=[each.line for each in problems],
            problems=problems,
            version=VERSION,
            namespace=namespace,
            now=Instant.of(found.now),
            store=StoreState(engine.kernel.store.url.partition(":")[0], found.latency_for, found.overdue_for),
            tasks=TaskCounts(
                ready=sum(depth.ready for depth in depths),
                running=sum(depth.running for depth in depths),
                waiting=sum(depth.waiting for depth in depths),
                held=sum(depth.held for depth in depths),
                oldest_due_at=min(
                    (Instant.of(each.oldest_due_at) for each in depths if each.oldest_due_at is not None), default=None
                ),
            ),
            engine_tasks=found.engine_tasks,
            runs=dict(sorted(found.runs.items())),
            dead_letters=found.dead_letters,
            approvals=found.approvals,
            blocked_objectives=found.blocked_objectives,
            servers=found.server_states,
            live_servers=found.live_servers,
            lost_servers=found.server_states.get("lost", 0),
            next_firings=found.next_firings,
            access=None if engine.kernel.open_access is None else "open" if engine.kernel.open_access else "token",
            open_servers=found.open_servers,
        )

    async def why(self, any_id: str) -> Why:
        if (found := await self._why_named(any_id)) is not None:
            return found
        for find in (self._why_task, self._why_run, self._why_record):
            if (found := await find(any_id)) is not None:
                return found
        raise TaskNotFound(any_id, "task or run")

    async def _why_named(self, name: str) -> Why | None:
        """Explain the live schedule or watcher of that name, or the schedule or watcher of that id, by its task."""
        from treadle.kernel.triggers.service import ACTIVE, PAUSED

        engine = self.engine
        for entity in (SCHEDULE, WATCHER):
            record = await find_by_name_or_id(engine.kernel.store, engine.kernel.settings.namespace, entity.entity, name)
            if record is None:
                continue
            found = None if record.task_id is None else await self._why_task(record.task_id)
            if found is not None and record.state == ACTIVE:
                return found
            resume = f"; resume it with `treadle {record.entity}s resume {record.name}`" if record.state == PAUSED else ""
            return Why(record.id, record.name or "", record.state, record.state, f"the {record.entity} is {record.state}{resume}")
        return None

    async def _why_task(self, task_id: str) -> Why | None:
        try:
            task = await self.engine.get_task(task_id)
        except TaskNotFound:
            return None
        return why_task(task, await self.engine.kernel.reads.explain(task))

    async def _why_run(self, run_id: str) -> Why | None:
        try:
            run = await self.engine.kernel.run_reads.get_current(run_id)
        except RunNotFound:
            return None
        return why_run(run, await self.engine.kernel.run_reads.why(run_id))

    async def _why_record(self, record_id: str) -> Why | None:
        record = await self.engine.kernel.store.records.find(record_id)
        if record is None or record.namespace != self.engine.kernel.settings.namespace:
            return None
        if record.entity == OBJECTIVE.entity:
            trail = await self.engine.goals.objectives.show(record.id)
            return Why(record.id, trail.objective.title, trail.objective.status, "objective", trail.why)
        return None if record.task_id is None else await self._why_task(record.task_id)
