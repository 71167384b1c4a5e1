"""Maintenance of the store: its health, verification, retention and pruning."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from treadle.api.store import (
    PruneStep,
    QueueDepths,
    RetentionRule,
    RetentionRules,
    StoreCallReport,
    StoreCallTimes,
    StoreInfo,
    VerifyPage,
)
from treadle.api.wire import Instant, record_of
from treadle.kernel.core import Core, Service
from treadle.kernel.documents import PARTS, Documents
from treadle.kernel.external.rebuild import ExternalUpkeep
from treadle.kernel.operations import log_operation, operation_entry
from treadle.kernel.reads.service import Reads
from treadle.kernel.store.health import findings
from treadle.kernel.store.lookups import PAGE_LIMIT, check_limit
from treadle.kernel.store.retention import START, Retention
from treadle.kernel.store.verify import verify_page
from treadle.kernel.telemetry.observer import CallTimer
from treadle.model.errors import InvalidInput, StoreDamaged
from treadle.model.ids import parse_id

_JOBS = "external"
"""Prefix of cursors for the second part of a verification: records of external jobs, after all histories. Documents follow."""


class Maintenance(Service):
    """Maintenance of the store of one namespace."""

    def __init__(
        self,
        core: Core,
        reads: Reads,
        retention: Retention,
        jobs: ExternalUpkeep,
        documents: Callable[[], Documents],
        timer: Callable[[], CallTimer],
    ) -> None:
        """`documents` and `timer` are made when they are first used."""
        super().__init__(core)
        self._reads = reads
        self._retention = retention
        self._jobs = jobs
        self._documents = documents
        self._timer = timer

    async def info(self) -> StoreInfo:
        store = self._store
        described = await store.health.describe()
        health = await store.health.check()
        finished = await store.tasks.count_finished()
        return StoreInfo(
            store=store.url,
            described=described,
            finished=finished.by_state,
            finished_exact=finished.exact,
            queues=[record_of(QueueDepths, depth, depth.queue) for depth in await self._reads.list_depths()],
            health=replace(health, findings=list(findings(health))),
        )

    async def calls(self) -> StoreCallReport:
        timer = self._timer()
        return StoreCallReport(
            since_at=Instant.of(timer.since_at),
            operations=[
                record_of(
                    StoreCallTimes,
                    operation,
                    mean_for=round(operation.total / operation.calls * 1000, 3),
                    longest_for=round(operation.longest * 1000, 3),
                )
                for operation in timer.list()
            ],
        )

    async def verify(self, *, after: str | None = None, limit: int = PAGE_LIMIT) -> VerifyPage:
        check_limit(limit)
        half, _, at = (after or "").rpartition(":")
        at_id = parse_id(at, "cursor") if at else None
        if half == _JOBS:
            problems, before_id = await self._jobs.check_page(at_id, limit)
            return VerifyPage(not problems, 0, problems, f"{PARTS[0]}:" if before_id is None else f"{_JOBS}:{before_id}")
        if half in PARTS:
            problems, following = await self._documents().check_page(half, at_id, limit)
            return VerifyPage(not problems, 0, problems, None if following is None else ":".join(following))
        if half:
            raise InvalidInput(f"after must be the next_after of the previous call, not {after!r}.")
        problems = await self._store.health.list_damage() if after is None else []
        try:
            report, after_id = await verify_page(self._store, at_id, limit)
        except StoreDamaged as error:
            return VerifyPage(False, 0, problems or [str(error)], None)
        problems += report.problems
        return VerifyPage(not problems, report.checked, problems, f"{_JOBS}:" if after_id is None else after_id)

    async def keeps(self) -> RetentionRules:
        rules = self._retention.rules
        lists = [
            self._rule(settings.task_list, settings.keep_completed_for, settings.keep_failed_for)
            for settings in await self._retention.keeps()
        ]
        return RetentionRules(rules.keep_completed_for, rules.keep_failed_for, lists)

    async def keep(
        self, task_list: str, *, completed: float | None = None, failed: float | None = None, actor: str = "operator"
    ) -> RetentionRule:
        own = {settings.task_list: settings for settings in await self._retention.keeps()}.get(task_list)
        before = {"completed": own and _seconds(own.keep_completed_for), "failed": own and _seconds(own.keep_failed_for)}
        entry = operation_entry(self._core, "store.keep", task_list, actor, before, {"completed": completed, "failed": failed})
        return self._rule(task_list, *await self._retention.keep(task_list, completed=completed, failed=failed, entry=entry))

    async def prune(
        self, *, older_than: float | None = None, dry_run: bool = False, after: str | None = None, actor: str = "operator"
    ) -> PruneStep:
        if after is None and not dry_run:
            await log_operation(self._core, "store.prune", "ended work", actor, {"older_than": older_than})
        return await self._retention.prune_some(older_than=older_than, dry_run=dry_run, after=START if after is None else after)

    async def prune_tree(self, member_id: str, *, actor: str = "operator") -> PruneStep:
        await log_operation(self._core, "store.prune_tree", member_id, actor)
        return await self._retention.prune_tree(member_id)

    def _rule(self, task_list: str, completed_for: int | None, failed_for: int | None) -> RetentionRule:
        rules = self._retention.rules
        return RetentionRule(
            task_list,
            rules.keep_completed_for if completed_for is None else completed_for,
            rules.keep_failed_for if failed_for is None else failed_for,
        )


def _seconds(duration: int | None) -> float | None:
    return None if duration is None else duration / 1000
