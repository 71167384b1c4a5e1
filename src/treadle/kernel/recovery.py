"""Recovery at start-up, before the workers claim anything. Idempotent; never touches live work of other servers (D21).

In this order: check that each pending approval still has its waiting task; make work ready again whose lease has expired or was
held by a process that is known to be dead; let schedules and watchers repair missed work. Then the loops start. Leases enforce
the same rules at all times: start-up only applies them immediately.

An effect that was interrupted is resolved when its task runs again (`kernel.effects.decide`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from treadle.kernel.approvals.decide import ENTITY as APPROVAL
from treadle.kernel.approvals.decide import PENDING
from treadle.kernel.approvals.service import Approvals
from treadle.kernel.core import Core, Service
from treadle.kernel.store.lookups import every_record, every_task
from treadle.kernel.store.queries import TaskFilter, Woken
from treadle.kernel.store.records import RecordFilter
from treadle.kernel.takeover import HasEnded, declare_dead
from treadle.model.errors import Refused
from treadle.model.states import StateMachine, TaskState
from treadle.model.tasks import PROCESS, Server, Task

if TYPE_CHECKING:
    from treadle.kernel.triggers import Triggers

T = TypeVar("T")

_PAGE = 1000
_READ_LIMIT = 20_000
"""Limit on the approvals, and on the running tasks, that one recovery reads; the rest is handled when due."""
_ONE_BY_ONE = 1000
_ROUNDS = 10
_OVER = ("stopped", "error")


class MissedWork(msgspec.Struct, frozen=True):
    """A schedule or watcher that missed work, and the planned action."""

    name: str
    text: str


class RecoveringServer(msgspec.Struct, frozen=True):
    """The recovering server: its name if it has one, its host, and its view of the processes of its kernel."""

    name: str | None
    host: str
    has_ended: HasEnded


class RecoveryReport(msgspec.Struct):
    """The actions taken, or with `dry_run` the actions that would be taken."""

    dry_run: bool
    pending_approvals: int = 0
    """Approvals with a task that still waits for them and wakes when something is due."""
    overdue_approvals: int = 0
    """Pending approvals past their expiry; they expire now."""
    orphaned_approvals: list[str] = msgspec.field(default_factory=list)
    """Approvals without a task; they are canceled."""
    expired_leases: int = 0
    """Tasks with an expired lease, of any owner."""
    own_servers: list[str] = msgspec.field(default_factory=list)
    """Processes that ended without deregistering: earlier ones of this server, and others of this kernel."""
    own_tasks: int = 0
    """Tasks held by those earlier processes."""
    unknown_effects: int = 0
    """Effects of these tasks with an unknown outcome."""
    others: dict[str, list[MissedWork]] = msgspec.field(default_factory=dict)
    """Missed work and the planned action, by service (`schedules`, `watchers`)."""
    repaired: dict[str, list[str]] = msgspec.field(default_factory=dict)
    """Entities that got a new task, by service."""
    problems: list[str] = msgspec.field(default_factory=list)
    """Failures that the recovery skipped."""

    @property
    def did(self) -> bool:
        """Whether there was anything to recover."""
        return bool(
            self.orphaned_approvals
            or self.expired_leases
            or self.own_servers
            or any(self.others.values())
            or any(self.repaired.values())
            or self.problems
        )


class Recovery(Service):
    """Recovers one namespace; leases and servers are those of the whole store."""

    def __init__(
        self, core: Core, approvals: Approvals, services: Mapping[str, tuple[StateMachine, Callable[[], Triggers[Any, Any]]]]
    ) -> None:
        """`services` are made only if there are active records of their machine: most namespaces need not import their modules."""
        super().__init__(core)
        self._approvals = approvals
        self._services = services

    async def recover(self, place: RecoveringServer | None = None, *, dry_run: bool = False) -> RecoveryReport:
        """Run the recovery, or with `dry_run` only report it; without a `place`, no server's leases end early."""
        report = RecoveryReport(dry_run)
        await self._recover_approvals(report)
        await self._recover_work(report, place)
        for name, (machine, make) in self._services.items():
            report.others[name], report.repaired[name] = [], []
            active = RecordFilter(machine.entity, self._namespace, states=(machine.initial,), live=True)
            if not await self._store.records.list_matching(active, 1):
                continue
            service = make()
            report.others[name] = [MissedWork(missed.name, missed.text) for missed in await service.describe_recovery()]
            try:
                report.repaired[name] = [] if dry_run else list(await service.repair())
            except Refused as error:  # the required list is draining: that must not keep the server from starting
                report.problems.append(f"{name}: {error}")
        return report

    async def _recover_approvals(self, report: RecoveryReport) -> None:
        now = await self._store.now()
        pending = RecordFilter(APPROVAL, namespace=self._namespace, states=(PENDING,))
        records = await _first(every_record(self._store, pending))
        waiting = await self._tasks(TaskFilter(states=(TaskState.AWAITING_APPROVAL,))) if len(records) > _ONE_BY_ONE else []
        tasks = {task.id: task for task in waiting}
        for record in records:
            task = tasks.get(record.task_id or "") or await self._store.tasks.find(record.task_id or "")
            if task is None or task.state != TaskState.AWAITING_APPROVAL:
                if report.dry_run or await self._approvals.close_orphan(record):
                    report.orphaned_approvals.append(record.id)
                continue
            report.pending_approvals += 1
            due = task.wake_at is None or task.wake_at <= now
            report.overdue_approvals += due and await self._approvals.is_over(record, now)

    async def _recover_work(self, report: RecoveryReport, place: RecoveringServer | None) -> None:
        dead = [] if place is None else self._earlier(await self._store.servers.list_all(), place)
        overdue = report.dry_run or (await self._wake(expire_leases=False)).overdue
        if overdue or dead:  # otherwise no lease is lost, and the running tasks need not be read
            await self._count(report, {server.id for server in dead})
        if not report.dry_run and dead:
            await declare_dead(self._store, {server.id: None if _is_of(server, place) else PROCESS for server in dead})
        if not report.dry_run and (overdue or dead):
            await self._wake(expire_leases=True)

    async def _count(self, report: RecoveryReport, owner_ids: set[str]) -> None:
        now = await self._store.now()
        held = await self._tasks(TaskFilter(held=True))
        lost = [task for task in held if (task.wake_at or 0) <= now]
        own = [task for task in held if task.owner_id in owner_ids and (task.wake_at or 0) > now]
        report.expired_leases = len(lost)
        report.own_servers = sorted(owner_ids)
        report.own_tasks = len(own)
        if roots := sorted({task.root_id for task in (*lost, *own)}):
            report.unknown_effects = await self._store.records.count_unknown(roots)

    async def _wake(self, *, expire_leases: bool) -> Woken:
        """Wake due tasks; past a limit, the worker's own loop wakes the rest, so that start-up is not delayed."""
        for _ in range(_ROUNDS):
            woken = await self._store.tasks.wake(_PAGE, expire_leases=expire_leases)
            if woken.queue_ids:
                self._committer.notify(woken.queue_ids)
            if woken.count < _PAGE or not expire_leases:
                break
        return woken

    @staticmethod
    def _earlier(servers: Sequence[Server], place: RecoveringServer) -> list[Server]:
        """Servers that never reported their stop, and whose process is seen to have ended (D80).

        Names, hosts and pids prove nothing: containers share them. A process that cannot be seen counts as alive.
        """
        return [
            server
            for server in servers
            if server.state not in _OVER and server.process is not None and place.has_ended(server.process)
        ]

    async def _tasks(self, which: TaskFilter) -> list[Task]:
        return await _first(every_task(self._store, which))


def _is_of(server: Server, place: RecoveringServer | None) -> bool:
    """Whether it is an earlier process of the recovering server."""
    return place is not None and (server.name, server.host) == (place.name, place.host)


async def _first(records: AsyncIterator[T]) -> list[T]:
    """The first entries, up to the limit of one recovery."""
    entries: list[T] = []
    async for entry in records:
        entries.append(entry)
        if len(entries) == _READ_LIMIT:
            break
    return entries
