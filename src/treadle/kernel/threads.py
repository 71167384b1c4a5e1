"""Threads: the checkpoints of an agent framework, as items of one record per thread.

A thread that a task has written belongs to it until the task ends: its claim guards every write, and all other writers are
refused. A write without a claim is guarded by the version of the record, and by the end of that task, which may be retried.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Collection

from treadle.kernel.core import Service
from treadle.kernel.store.committer import Stale
from treadle.kernel.store.lookups import PAGE_LIMIT, every_record
from treadle.kernel.store.process import failpoint
from treadle.kernel.store.records import ChangeRecord, PutItems, PutRecord, RecordFilter
from treadle.kernel.store.units import Row, Seen, Unit, Verdict
from treadle.model.errors import ClaimLost, PayloadTooLarge, Refused
from treadle.model.names import check_key
from treadle.model.records import Record, ThreadItem
from treadle.model.states import THREAD
from treadle.model.stored import read, write
from treadle.model.tasks import Claim, Task
from treadle.model.values import PAYLOAD_LIMIT

Items = dict[str, ThreadItem | None]
"""Items to store by key; None removes one."""
Decide = Callable[[str | None], Awaitable[Items]]
"""Returns the changes to the record with that id; None: the thread does not exist."""

WRITE_TIMEOUT = 30.0
"""Seconds that a write without a claim waits for the store."""

ITEM_LIMIT = 64 * PAYLOAD_LIMIT
"""Limit in bytes on one item."""


class Threads(Service):
    """The threads of one namespace."""

    async def find(self, thread_id: str) -> str | None:
        """Return the id of the thread's record, or None."""
        record = await self._find(thread_id)
        return None if record is None else record.id

    async def _find(self, thread_id: str) -> Record | None:
        name = check_key(thread_id, "thread id")
        return await self._store.records.find_named(self._namespace, THREAD.entity, name)

    async def list_names(self) -> list[tuple[str, str]]:
        """Return the record and the name of every thread, newest first."""
        which = RecordFilter(THREAD.entity, self._namespace, live=True)
        return [(record.id, record.name or "") async for record in every_record(self._store, which)]

    async def find_items(self, record_id: str, keys: Collection[str]) -> dict[str, ThreadItem]:
        """Return the items that exist among those keys."""
        items = dict(await self._store.records.list_items(record_id, keys=list(keys)) if keys else ())
        return {key: read(ThreadItem, value) for key, value in items.items()}

    async def first_item(self, record_id: str, prefix: str) -> ThreadItem | None:
        """Return the first item, by key, with the prefix."""
        for key, value in await self._store.records.list_items(record_id, prefix, 1):
            if key.startswith(prefix):
                return read(ThreadItem, value)
        return None

    async def items(self, record_id: str, prefix: str = "") -> AsyncIterator[tuple[str, ThreadItem]]:
        """Yield the items with the prefix, in order of key."""
        after = prefix
        while page := await self._store.records.list_items(record_id, after, PAGE_LIMIT):
            for key, value in page:
                if not key.startswith(prefix):
                    return
                yield key, read(ThreadItem, value)
            after = page[-1][0]

    async def write(self, thread_id: str, decide: Decide, task: Task | None, claim: Claim | None) -> None:
        """Change items of the thread, which is created if there are any to store.

        `claim` is the one under which `task` is held now. Raises `ClaimLost` if it is not held any more, and `Refused`
        (`thread_held`) if the thread belongs to another task that has not ended; nothing is written then.
        """

        async def attempt() -> None:
            record = await self._find(thread_id)
            guard = await self._check_writer(record, thread_id, claim)
            items = await decide(None if record is None else record.id)
            if items:
                await self._commit(self._rows(record, thread_id, items, task), guard)

        await self._committer.transact(attempt, f"write the thread {thread_id}")

    async def remove(self, thread_id: str, claim: Claim | None) -> None:
        """Delete the thread and its items; a no-op if there is none. Guarded as `write` is."""

        async def attempt() -> None:
            record = await self._find(thread_id)
            if record is None:
                return
            guard = await self._check_writer(record, thread_id, claim)
            while keys := [key for key, _ in await self._store.records.list_items(record.id, None, PAGE_LIMIT)]:
                await self._commit((_change(record), PutItems(record.id, tuple((key, None) for key in keys))), guard)
                record = await self._store.records.find(record.id)
                if record is None or record.ended_at is not None:
                    return
            actor = None if claim is None else claim.owner_id
            ended = ChangeRecord(
                record.id, record.version, record.document, "remove", "kept", "removed", ended=True, actor=actor or "python"
            )
            await self._commit((ended,), guard)

        await self._committer.transact(attempt, f"delete the thread {thread_id}")

    async def _check_writer(self, record: Record | None, thread_id: str, claim: Claim | None) -> Claim | Seen | None:
        """Return the guard of the write: the claim, or the end of the task that the thread belonged to."""
        if record is None or record.task_id is None or (claim is not None and claim.task_id == record.task_id):
            return claim
        task = await self._store.tasks.find(record.task_id)
        if task is not None and not task.finished:
            raise Refused(
                f"The thread {thread_id} belongs to the task {record.task_id}, which has not ended: only its worker may write it. "
                "Wait for its end or cancel it, or use another thread.",
                code="thread_held",
            )
        return claim if claim is not None or task is None else Seen.of(task)

    def _rows(self, record: Record | None, thread_id: str, items: Items, task: Task | None) -> tuple[Row, ...]:
        puts = tuple((key, None if item is None else _text(item)) for key, item in items.items())
        if record is None:
            own = task is not None and thread_id in (task.run_id, task.id)
            record = Record(
                id=self._ids.new_id(),
                namespace=self._namespace,
                entity=THREAD.entity,
                name=thread_id,
                state=THREAD.initial,
                task_id=None if task is None else task.id,
                run_id=task.run_id if task is not None and own else None,
                root_id=task.root_id if task is not None and own else None,
            )
            return PutRecord(record), PutItems(record.id, puts)
        if task is not None and record.task_id == task.id:
            return (PutItems(record.id, puts),)  # the claim alone guards it, so concurrent nodes do not wait for each other
        return _change(record, task), PutItems(record.id, puts)

    async def _commit(self, rows: tuple[Row, ...], guard: Claim | Seen | None) -> None:
        failpoint("thread.before_commit")
        answer = await self._committer.submit(Unit(guard, rows=rows), None if isinstance(guard, Claim) else WRITE_TIMEOUT)
        failpoint("thread.after_commit")
        if answer.verdict is Verdict.CLAIM_LOST and isinstance(guard, Claim):
            task = await self._store.tasks.find(guard.task_id)
            if task is None or task.finished or task.claim != guard:
                raise ClaimLost(guard.task_id, guard.version)
        if answer.verdict is not Verdict.DONE or answer.existing:
            raise Stale


def _change(record: Record, task: Task | None = None) -> ChangeRecord:
    return ChangeRecord(record.id, record.version, record.document, task_id=None if task is None else task.id)


def _text(item: ThreadItem) -> str:
    text = write(item)
    if len(text) > ITEM_LIMIT:
        raise PayloadTooLarge(
            f"A value of the thread takes {len(text):,} bytes, more than {ITEM_LIMIT:,}: keep large files elsewhere, and their "
            "names in the state."
        )
    return text
