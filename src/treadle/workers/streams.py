"""Streams of an attempt: entries are buffered, and appended in batches under the claim of the task.

A batch is sent about ten times a second, so that a thousand tokens cost a handful of statements. The end of an attempt is
committed together with its last entries.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from itertools import count

import msgspec

from treadle.kernel.store.process import failpoint
from treadle.kernel.store.records import AppendStream
from treadle.kernel.store.units import Row, Unit, Verdict
from treadle.model.errors import ClaimLost, InvalidInput, StoreBusy, StoreError, StoreUnavailable
from treadle.model.records import ENTRY_LIMIT, check_stream_name
from treadle.model.tasks import Claim, Task
from treadle.model.values import Json, encode
from treadle.workers.effects import EffectKernel

_quick = msgspec.json.Encoder().encode

FLUSH_EVERY = 0.1
"""Seconds between the instants at which buffered entries are sent."""


class StreamWriter:
    """A stream that this task or run writes to: `ctx.stream("tokens").write("Hello")`."""

    __slots__ = ("_add", "_flush", "name")

    def __init__(self, name: str, add: Callable[[str, str | None], None], flush: Callable[[], Awaitable[None]]) -> None:
        self.name = check_stream_name(name)
        self._add = add
        self._flush = flush

    def write(self, value: Json) -> None:
        """Append an entry: text or any JSON of up to 64 KiB. Readers see it within about 0.1 s. Any thread may call this.

        Returns immediately: entries are buffered, and stored with the end of the attempt at the latest. Raises `ClaimLost` once the
        task belongs to another worker. A full stream drops entries, and tells its readers so.
        """
        self._add(self.name, _text(value))

    async def flush(self) -> None:
        """Wait until everything written so far is stored; raises `ClaimLost` if the task belongs to another worker."""
        await self._flush()


class _Buffer(msgspec.Struct):
    """Entries of one stream that are not sent."""

    entries: list[str] = msgspec.field(default_factory=list)
    turn: int = 0
    """The place of the first of them among all entries of the outlet."""
    start: int = 0
    """The number of entries of the session before these."""
    stored: int | None = 0
    """The number of entries that were stored before and are skipped; None if it was not read yet."""
    size: int = 0
    """The length of all entries of the session."""
    truncated: bool = False
    reported: bool = False
    """Whether the store knows that entries were dropped."""


class Outlet:
    """Sends the entries of all sessions under one claim, in the order in which they were written."""

    def __init__(self, kernel: EffectKernel, task: Task, claim: Callable[[], Claim]) -> None:
        self.kernel = kernel
        self.task = task
        self.claim = claim
        self.lost = False
        """Whether the claim is lost, or the engine closed."""
        self.lock = threading.Lock()
        """Guards the buffers, which any thread may fill."""
        self.turns = count()
        self.sessions: list[Streams] = []
        self._one = asyncio.Lock()
        self._timer: asyncio.Task[None] | None = None
        self._scheduled = False

    def schedule(self) -> None:
        """Flush soon; any thread may call this, with the lock."""
        if not self._scheduled:
            self._scheduled = True
            if self.kernel.loop is not None:
                with suppress(RuntimeError):  # the loop is closed
                    self.kernel.loop.call_soon_threadsafe(self._start)

    def _start(self) -> None:
        if self._timer is None and self._scheduled:
            self._timer = asyncio.get_running_loop().create_task(self._flush_soon())

    async def _flush_soon(self) -> None:
        try:
            while self._scheduled:
                # at the same instants for all attempts of the process, so that one commit stores the entries of all
                await self.kernel.clock.sleep(FLUSH_EVERY - self.kernel.clock.monotonic() % FLUSH_EVERY)
                self._scheduled = False
                await self._flush()
        finally:
            self._timer = None

    async def flush(self) -> None:
        """Store all buffered entries; raises `ClaimLost`."""
        await asyncio.shield(asyncio.ensure_future(self._flush()))  # a caller that stops waiting loses no entries
        self.check()

    def check(self) -> None:
        """Raise `ClaimLost` if nothing can be stored any more."""
        if self.lost:
            raise ClaimLost(self.task.id, self.claim().version)

    async def _flush(self, last: Streams | None = None, *, continues: bool = False) -> tuple[Row, ...]:
        """Store all buffered entries, except those of the `last` session of an attempt, which are returned."""
        async with self._one:
            for session in list(self.sessions):
                await session.skip_stored()
            with self.lock:
                entries = sorted(
                    (entry for session in self.sessions if session is not last for entry in session.take()), key=lambda row: row[0]
                )
                rest = [] if last is None else last.take(last=True, continues=continues)
            if entries and not self.lost:
                self.lost = not await self._commit(tuple(row for _, row in entries))
            return () if self.lost else tuple(row for _, row in rest)

    async def close(self, last: Streams, *, continues: bool = False) -> tuple[Row, ...]:
        """End a session, and return the rows of its last entries, to commit with the end of the attempt."""
        with self.lock:
            last.closed = True
        rows = await self._flush(last, continues=continues)
        self.sessions.remove(last)
        if not self.sessions:
            self.drop()
        return rows

    async def _commit(self, rows: tuple[Row, ...]) -> bool:
        """Append the rows; return whether the claim held."""
        kernel, claim = self.kernel, self.claim()
        failpoint("stream.before_commit")
        try:
            while (await kernel.committer.submit(Unit(claim, rows=rows))).verdict is not Verdict.DONE:
                with suppress(StoreUnavailable, StoreBusy):  # the next commit waits for the store
                    task = await kernel.store.tasks.find(self.task.id)
                    if task is None or task.finished or task.claim != claim:
                        return False
                # another unit of this task moved it in the same commit
        except StoreError:  # the engine is closed
            return False
        failpoint("stream.after_commit")
        kernel.committer.streamed()
        return True

    def drop(self) -> None:
        """Forget all entries that are not sent: the attempt is over."""
        for session in self.sessions:
            session.closed = True
        self._scheduled = False
        if self._timer is not None:
            self._timer.cancel()


class Streams:
    """The streams of one session of a writer: an attempt at a task, an attempt at a step, or the code of a function.

    With `replays`, the session is the only one of its writer, which repeats its entries from the first: those that are stored
    are skipped.
    """

    def __init__(self, outlet: Outlet, writer: str, session: str, *, replays: bool = False) -> None:
        self.outlet = outlet
        self.closed = False
        self._writer = writer
        self._session = session
        self._replays = replays
        self._buffers: dict[str, _Buffer] = {}
        outlet.sessions.append(self)

    def add(self, name: str, text: str | None) -> None:
        """Buffer an entry (as JSON) and schedule its flush; None only opens the stream. Any thread may call this."""
        outlet = self.outlet
        outlet.check()
        with outlet.lock:
            if self.closed:
                raise InvalidInput("The stream is closed: the attempt that wrote to it has ended.")
            if (buffer := self._buffers.get(name)) is None:
                buffer = self._buffers[name] = _Buffer(stored=None if self._replays else 0)
            if text is None or buffer.truncated:
                return
            buffer.size += len(text) + 1
            if buffer.size > outlet.kernel.stream_limit:
                buffer.truncated = True
            elif not buffer.entries and buffer.start < (buffer.stored or 0):
                buffer.start += 1
            else:
                if not buffer.entries:
                    buffer.turn = next(outlet.turns)
                buffer.entries.append(text)
            outlet.schedule()

    async def skip_stored(self) -> None:
        """Skip the entries that an earlier execution of the same code has stored."""
        task, kernel = self.outlet.task, self.outlet.kernel
        for name, buffer in [(name, buffer) for name, buffer in self._buffers.items() if buffer.stored is None]:
            stored = await kernel.read(partial(kernel.store.streams.count_entries, task.run_id or task.id, name, self._writer))
            with self.outlet.lock:
                buffer.stored = stored
                skipped = min(stored, len(buffer.entries))
                del buffer.entries[:skipped]
                buffer.start += skipped

    def take(self, *, last: bool = False, continues: bool = False) -> list[tuple[int, AppendStream]]:
        """Return the rows of all buffered entries, in chunks, with their turns, and empty the buffers."""
        rows = []
        task = self.outlet.task
        for name, buffer in self._buffers.items():
            chunks = _chunks(buffer.entries)
            if last or (buffer.truncated and not buffer.reported):
                chunks = chunks or [[]]
            for chunk in chunks:
                is_last = chunk is chunks[-1]
                row = AppendStream(
                    owner_id=task.run_id or task.id,
                    name=name,
                    namespace=task.namespace,
                    root_id=task.root_id,
                    writer=self._writer,
                    session=self._session,
                    start=buffer.start,
                    entries=f"[{','.join(chunk)}]",
                    count=len(chunk),
                    limit=self.outlet.kernel.stream_limit,
                    continues=continues and is_last,
                    truncated=buffer.truncated and is_last,
                )
                rows.append((buffer.turn, row))
                buffer.start += len(chunk)
            buffer.entries = []
            buffer.reported = buffer.truncated
        return rows


def _text(value: Json) -> str:
    """Return the entry as JSON; most are short texts."""
    if type(value) is str and len(value) < 1000 and value.isprintable():
        return _quick(value).decode()
    return encode(value, "stream entry", ENTRY_LIMIT)


def _chunks(entries: list[str]) -> list[list[str]]:
    """Split entries into chunks of up to 64 KiB."""
    chunks: list[list[str]] = []
    size = ENTRY_LIMIT
    for entry in entries:
        size += len(entry) + 1
        if size > ENTRY_LIMIT:
            chunks.append([])
            size = len(entry)
        chunks[-1].append(entry)
    return chunks
