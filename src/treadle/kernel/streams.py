"""Reads of streams: pages, and followers that wait for new entries until the work has ended.

A follower needs no position but the next offset, so that it can resume anywhere, in any process. New entries of this process
wake it immediately, those of others through the signals of the store; otherwise it polls.
"""

from __future__ import annotations

import asyncio
import builtins
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager, suppress
from typing import Any, NamedTuple

from treadle.api.streams import Kind, StreamEntry, StreamList, StreamPage, StreamSummary
from treadle.api.tasks import WAIT_LIMIT
from treadle.api.wire import Instant, record_of
from treadle.kernel.core import Service
from treadle.kernel.store.lookups import check_limit, find_work
from treadle.kernel.store.process import wait_or_sleep
from treadle.kernel.store.records import PutMessage
from treadle.kernel.store.units import RunGuard, Unit
from treadle.model.access import Access
from treadle.model.errors import InvalidInput, NotFound, TaskNotFound, UnreadableValue
from treadle.model.ids import Ref, derived_id
from treadle.model.records import ABANDONED, ENTRIES, TRUNCATED, Message, StreamChunk, check_stream_name
from treadle.model.runs import Run
from treadle.model.states import TaskState
from treadle.model.values import Json, decode, encode

POLL_EVERY = 0.5
"""Seconds between reads without a signal."""

LAST_OFFSET = 2**63 - 1
_CHUNKS = 50


class _Owner(NamedTuple):
    """The work that a stream is read of; `writer` is the task, if it is a task of a run."""

    id: str
    is_run: bool
    writer: str | None = None


class StreamReads(Service):
    """The streams of one namespace."""

    async def list(self, member_id: Ref, *, access: Access | None = None) -> StreamList:
        """Return the streams of a run or a task."""
        owner = await self._find_owner(member_id, access)
        return StreamList([record_of(StreamSummary, stream) for stream in await self._store.streams.list_of([owner.id])])

    async def read(
        self,
        member_id: Ref,
        name: str,
        *,
        offset: int = 0,
        limit: int = 1000,
        wait_for: float = 0.0,
        access: Access | None = None,
    ) -> StreamPage:
        """Return up to `limit` entries from an offset on; waits up to `wait_for` seconds for the first one, or for the end.

        Raises `NotFound` (`stream_not_found`) if the work has ended and has no such stream.
        """
        if not 0 <= wait_for <= WAIT_LIMIT:
            raise InvalidInput(f"wait_for must be from 0 to {WAIT_LIMIT:g} seconds, not {wait_for:g}.")
        check_place(name, offset)
        check_limit(limit)
        owner = await self._find_owner(member_id, access)
        page = await self._read(owner, name, offset, limit)
        if wait_for and not page.entries and not page.ended:
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_for), aclosing(self.follow(member_id, name, offset=page.next_offset)) as entries:
                    await anext(entries, None)
            page = await self._read(await self._find_owner(member_id, access), name, offset, limit)
        if page.ended and not page.entries:
            written = [stream.name for stream in await self._store.streams.list_of([owner.id])]
            if name not in written:
                streams = f"It has written {', '.join(written)}." if written else "It has written no streams."
                raise NotFound(f"There is no stream {name!r} of {owner.id}, which has ended. {streams}", code="stream_not_found")
        return page

    async def read_next(self, work: Ref, name: str, offset: int, limit: int) -> StreamPage:
        """Return up to `limit` entries from an offset on, without waiting; a stream that was never written has none."""
        return await self._read(await self._find_owner(work, None), name, offset, limit)

    async def wake_reader(self, run_id: str, step_id: str, work: Ref, name: str, offset: int) -> None:
        """Put a message for the step into the inbox of a run, as soon as there is an entry from the offset on, or at the end."""
        async with aclosing(self.follow(work, name, offset=offset)) as entries:
            await anext(entries, None)
        document = self._value_store.encode_text(encode({"state": TaskState.COMPLETED}))
        message = Message(id=derived_id(step_id, f"stream/{offset}"), run_id=run_id, step_id=step_id, document=document)
        await self._committer.submit(Unit(run=RunGuard(run_id, None, live=True), rows=(PutMessage(message),)))

    async def _read(self, owner: _Owner, name: str, offset: int, limit: int) -> StreamPage:
        ended = await self._has_ended(owner)
        entries: builtins.list[StreamEntry] = []
        while len(entries) < limit:
            page, after = await self._next(owner, name, offset)
            entries += page[: limit - len(entries)]
            if len(entries) == limit:
                return StreamPage(entries, entries[-1].offset + 1, ended=False)
            if after == offset:
                break
            offset = after
        return StreamPage(entries, offset, ended)

    async def follow(self, member_id: Ref, name: str, *, offset: int = 0) -> AsyncGenerator[StreamEntry, None]:
        """Yield the entries from an offset on, each once, and new ones as they are stored; ends when the work has ended."""
        check_place(name, offset)
        owner = await self._find_owner(member_id, None)
        ended = False
        async with self._hints(owner) as hinted:
            while True:
                hinted.clear()
                entries, after = await self._next(owner, name, offset)
                for entry in entries:
                    yield entry
                if after > offset:
                    offset = after
                elif ended:
                    return
                elif not (ended := await self._has_ended(owner)):
                    await wait_or_sleep(hinted, self._clock, POLL_EVERY)

    async def _find_owner(self, work: Ref, access: Access | None) -> _Owner:
        record = await find_work(self._store, self._namespace, work)
        if not (access is None or access.may_use(record.task_list)):
            raise TaskNotFound(record.id, "task or run")
        if isinstance(record, Run):
            return _Owner(record.id, is_run=True)
        return _Owner(record.run_id or record.id, is_run=False, writer=None if record.run_id is None else record.id)

    async def _has_ended(self, owner: _Owner) -> bool:
        if owner.is_run:
            run = await self._store.runs.find(owner.id)
            return run is None or run.finished
        task = await self._store.tasks.find(owner.writer or owner.id)
        return task is None or task.finished

    async def _next(self, owner: _Owner, name: str, offset: int) -> tuple[builtins.list[StreamEntry], int]:
        """Return the next entries from an offset on, and the offset after everything that was read."""
        entries: builtins.list[StreamEntry] = []
        for chunk in await self._store.streams.list_chunks(owner.id, name, offset, _CHUNKS):
            if owner.writer is None or chunk.writer == owner.writer:
                entries += [entry for entry in _entries(chunk) if entry.offset >= offset]
            offset = max(offset, chunk.first_offset + chunk.count)
        return entries, offset

    @asynccontextmanager
    async def _hints(self, owner: _Owner) -> AsyncIterator[asyncio.Event]:
        """Subscribe to signals that may mean new entries, or the end of the work."""
        hinted = asyncio.Event()
        listener: Callable[..., None] = lambda *_: hinted.set()  # noqa: E731
        places: tuple[list[Any], ...] = (self._committer.on_streamed, self._committer.on_finished)
        for place in places:
            place.append(listener)
        stop: Callable[[], None] = lambda: None  # noqa: E731
        try:
            stop = await self._store.subscribe(listener)
            yield hinted
        finally:
            stop()
            for place in places:
                place.remove(listener)


def _entries(chunk: StreamChunk) -> list[StreamEntry]:
    at = Instant.of(chunk.created_at)
    kind: Kind = "entry"
    try:
        values = check_entries(chunk, decode(chunk.entries))
        if chunk.kind != ENTRIES:
            kind = "abandoned" if chunk.kind == ABANDONED else "truncated"
    except UnreadableValue as error:
        kind, values = "unreadable", [{"message": str(error), "entries": chunk.count}]
    return [
        StreamEntry(chunk.first_offset + number, kind, value, chunk.generation, chunk.writer, at)
        for number, value in enumerate(values)
    ]


def check_entries(chunk: StreamChunk, value: Json) -> list[Json]:
    """Return the entries of a chunk, or its notice; raises `UnreadableValue` unless they have the shape of it."""
    if chunk.kind == ENTRIES and isinstance(value, list) and len(value) == chunk.count:
        return value
    if chunk.kind == TRUNCATED and value is None:
        return [value]
    counts = [value.get(name) for name in ("generation", "since")] if isinstance(value, dict) else [None]
    if chunk.kind not in (ENTRIES, TRUNCATED) and all(type(count) is int for count in counts):
        return [value]
    raise UnreadableValue("The entries of a stream cannot be read. They are damaged, or a newer version wrote them.")


def check_place(name: str, offset: int) -> None:
    """Check the name of a stream and an offset in it; raises `InvalidInput`."""
    check_stream_name(name)
    if type(offset) is not int or not 0 <= offset <= LAST_OFFSET:
        raise InvalidInput(f"offset must be zero or more, not {offset!r}.")
