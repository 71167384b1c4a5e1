"""Compares the records of external jobs with their events (`store verify`), and rebuilds them (`external rebuild`)."""

from __future__ import annotations

import msgspec

from treadle.api.external_jobs import ExternalJobsRebuilt
from treadle.kernel.core import Service
from treadle.kernel.store.lookups import check_limit
from treadle.kernel.store.records import ChangeRecord, RecordFilter
from treadle.kernel.store.units import Unit, Verdict
from treadle.model.errors import UnreadableValue
from treadle.model.external import RING, ExternalEvent, ExternalProductionRecord, UnexpectedSpecialistResultError, project
from treadle.model.ids import parse_id
from treadle.model.records import Record
from treadle.model.states import EXTERNAL, TaskState
from treadle.model.stored import read, write

_PAGE = 500
_LATE_FOR = 60_000
"""Milliseconds by which a task may be due later than its record: it was paused, or a commit was slow."""


class ExternalUpkeep(Service):
    """The records of one namespace."""

    async def check(self) -> list[str]:
        """Return problems, one line each: records that differ from their events, and tasks that do not fit their record."""
        problems, before_id = await self.check_page()
        while before_id is not None:
            more, before_id = await self.check_page(before_id)
            problems += more
        return problems

    async def check_page(self, before_id: str | None = None, limit: int = _PAGE) -> tuple[list[str], str | None]:
        """Check up to `limit` records, newest first, older than `before_id`; return the problems and the next cursor, or None."""
        page = await self._store.records.list_matching(RecordFilter(EXTERNAL.entity, self._namespace, before_id=before_id), limit)
        problems = [problem for stored in page for problem in await self._check(stored)]
        return problems, page[-1].id if len(page) == limit else None

    async def _check(self, stored: Record) -> list[str]:
        if _is_unreadable(stored):
            return []  # encoded by a codec that this process does not have
        what = f"{stored.entity} {stored.id}"
        try:
            rebuilt = self._with_unknown(stored, await self._project(stored))
        except (UnexpectedSpecialistResultError, UnreadableValue) as error:
            return [f"{what}: its events do not form a record: {error}"]
        problems = [f"{what}: {problem}" for problem in await self._check_task(stored, rebuilt)]
        if await self._differs(stored, rebuilt):
            problems.insert(0, f"{what}: it differs from its events; `treadle external rebuild` repairs it")
        return problems

    async def rebuild_page(self, before_id: str | None = None, limit: int = _PAGE) -> ExternalJobsRebuilt:
        """Rebuild up to `limit` records, newest first, older than `before_id`."""
        check_limit(limit)
        before_id = None if before_id is None else parse_id(before_id, "cursor")
        page = await self._store.records.list_matching(RecordFilter(EXTERNAL.entity, self._namespace, before_id=before_id), limit)
        changed = sum([await self._rebuild(stored) for stored in page])
        return ExternalJobsRebuilt(len(page), changed, next_before=page[-1].id if len(page) == limit else None)

    async def _rebuild(self, stored: Record) -> bool:
        """Rebuild one record from its events; return whether it changed."""
        if _is_unreadable(stored):
            return False
        try:
            rebuilt = self._with_unknown(stored, await self._project(stored))
        except (UnexpectedSpecialistResultError, UnreadableValue):
            return False  # `store verify` reports it
        if not await self._differs(stored, rebuilt):
            return False
        change = ChangeRecord(stored.id, stored.version, write(rebuilt))
        answer = await self._committer.submit(Unit(rows=(change,)), self._patience)
        return answer.verdict is Verdict.DONE  # else a concurrent poll has rewritten it

    async def _project(self, stored: Record) -> ExternalProductionRecord:
        items = await self._store.records.list_items(stored.id, None, RING + 2)
        return project(read(ExternalEvent, value) for _, value in items)

    def _with_unknown(self, stored: Record, projected: ExternalProductionRecord) -> ExternalProductionRecord:
        """Return the record with the fields that a newer version stored in it, which no event explains here."""
        try:
            return msgspec.structs.replace(projected, more=read(ExternalProductionRecord, stored.document).more)
        except UnreadableValue:
            return projected

    async def _differs(self, stored: Record, rebuilt: ExternalProductionRecord) -> bool:
        """Return whether the record differs from its events; one that changed concurrently does not count."""
        try:
            if read(ExternalProductionRecord, stored.document) == rebuilt:
                return False
        except UnreadableValue:
            return True
        again = await self._store.records.find(stored.id)
        return again is not None and again.version == stored.version

    async def _check_task(self, stored: Record, rebuilt: ExternalProductionRecord) -> list[str]:
        task = await self._store.tasks.find(rebuilt.render_job_id)
        again = await self._store.records.find(stored.id)
        if task is None or again is None or again.version != stored.version:
            return []
        if rebuilt.completed_at is None and task.state != TaskState.AWAITING_EXTERNAL:
            return [f"it is live, but its task is {task.state}"]
        waits = task.owner_id is None and task.wake_at is not None and rebuilt.due_at is not None
        if waits and (task.wake_at or 0) > (rebuilt.due_at or 0) + _LATE_FOR:
            return [f"it is due at {rebuilt.due_at}, but its task wakes at {task.wake_at}"]
        return []


def _is_unreadable(stored: Record) -> bool:
    """Return whether the document is the placeholder of one that cannot be decoded here."""
    return stored.document.startswith(("@code:", f'{{"code":"{UnreadableValue.code}"'))
