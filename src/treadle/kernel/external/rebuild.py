"""The records of outside jobs against their events: checked by `store verify`, made again by `external rebuild`."""

from __future__ import annotations

import msgspec

from treadle.api.external_jobs import ExternalJobsRebuilt
from treadle.kernel.queue.service import PATIENCE
from treadle.kernel.store.committer import Committer
from treadle.kernel.store.ports import Store
from treadle.kernel.store.records import ChangeRecord, RecordFilter
from treadle.kernel.store.units import Unit, Verdict
from treadle.kernel.store.value_store import UnreadableValue
from treadle.model.errors import InvalidInput
from treadle.model.external import RING, ExternalEvent, ExternalProductionRecord, UnexpectedSpecialistResultError, project
from treadle.model.ids import parse_id
from treadle.model.names import DEFAULT_NAMESPACE
from treadle.model.records import Record
from treadle.model.states import EXTERNAL, TaskState
from treadle.model.values import decode

PAGE_LIMIT = 1000
_PAGE = 500
_LATE_FOR = 60_000
"""Milliseconds by which a task may be due later than its record says: it was paused, or a commit took its time."""


class ExternalUpkeep:
    """The records of one namespace."""

    def __init__(self, store: Store, committer: Committer, *, namespace: str = DEFAULT_NAMESPACE) -> None:
        self._store = store
        self._committer = committer
        self._namespace = namespace

    async def check(self) -> list[str]:
        """What is wrong, a line each: records that their events do not explain, and tasks that do not fit their record."""
        problems, before_id = await self.check_page()
        while before_id is not None:
            more, before_id = await self.check_page(before_id)
            problems += more
        return problems

    async def check_page(self, before_id: str | None = None, limit: int = _PAGE) -> tuple[list[str], str | None]:
        """The same for up to `limit` records, newest first, that are older than `before_id`; where to go on, or None."""
        page = await self._store.list_records(RecordFilter(EXTERNAL.entity, self._namespace, before_id=before_id), limit)
        problems = [problem for stored in page for problem in await self._check(stored)]
        return problems, page[-1].id if len(page) == limit else None

    async def _check(self, stored: Record) -> list[str]:
        if _is_sealed(stored):
            return []  # by a codec that this process does not have
        what = f"{stored.entity} {stored.id}"
        try:
            made = await self._project(stored)
        except (UnexpectedSpecialistResultError, msgspec.MsgspecError) as error:
            return [f"{what}: its events make no record: {error}"]
        problems = [f"{what}: {problem}" for problem in await self._check_task(stored, made)]
        if await self._differs(stored, made):
            problems.insert(0, f"{what}: it is not what its events make of it; `treadle external rebuild` makes it so")
        return problems

    async def rebuild(self) -> tuple[int, int]:
        """Make every record from its events again; how many there are, and how many were not as these say."""
        page = await self.rebuild_page()
        looked_at, changed = page.records, page.changed
        while page.next_before is not None:
            page = await self.rebuild_page(page.next_before)
            looked_at, changed = looked_at + page.records, changed + page.changed
        return looked_at, changed

    async def rebuild_page(self, before_id: str | None = None, limit: int = _PAGE) -> ExternalJobsRebuilt:
        """The same for up to `limit` records, newest first, that are older than `before_id`."""
        if not 0 < limit <= PAGE_LIMIT:
            raise InvalidInput(f"limit must be from 1 to {PAGE_LIMIT}, not {limit}.")
        before_id = None if before_id is None else parse_id(before_id, "cursor")
        page = await self._store.list_records(RecordFilter(EXTERNAL.entity, self._namespace, before_id=before_id), limit)
        changed = sum([await self._rebuild(stored) for stored in page])
        return ExternalJobsRebuilt(len(page), changed, page[-1].id if len(page) == limit else None)

    async def _rebuild(self, stored: Record) -> bool:
        """Make the record from its events again; whether it was not as these say."""
        if _is_sealed(stored):
            return False
        made = await self._project(stored)
        if not await self._differs(stored, made):
            return False
        change = ChangeRecord(stored.id, stored.version, msgspec.json.encode(made).decode())
        answer = await self._committer.submit(Unit(rows=(change,)), PATIENCE)
        return answer.verdict is Verdict.DONE  # else a poll was faster, and has written it anew

    async def _project(self, stored: Record) -> ExternalProductionRecord:
        items = await self._store.list_items(stored.id, None, RING + 2)
        return project(msgspec.json.decode(value, type=ExternalEvent) for _, value in items)

    async def _differs(self, stored: Record, made: ExternalProductionRecord) -> bool:
        """Whether the record is another than its events make; what changed while it was looked at is not."""
        try:
            if msgspec.json.decode(stored.body, type=ExternalProductionRecord) == made:
                return False
        except msgspec.MsgspecError:
            return True
        again = await self._store.find_record(stored.id)
        return again is not None and again.version == stored.version

    async def _check_task(self, stored: Record, made: ExternalProductionRecord) -> list[str]:
        task = await self._store.find_task(made.render_job_id)
        again = await self._store.find_record(stored.id)
        if task is None or again is None or again.version != stored.version:
            return []
        if made.completed_at is None and task.state != TaskState.AWAITING_EXTERNAL:
            return [f"it goes on, but its task is {task.state}"]
        waits = task.owner_id is None and task.wake_at is not None and made.due_at is not None
        if waits and (task.wake_at or 0) > (made.due_at or 0) + _LATE_FOR:
            return [f"it is due at {made.due_at}, but its task wakes at {task.wake_at}"]
        return []


def _is_sealed(stored: Record) -> bool:
    """Whether the body is what is shown in place of one that cannot be opened here."""
    return stored.body.startswith("@code:") or decode(stored.body).get("code") == UnreadableValue.code
