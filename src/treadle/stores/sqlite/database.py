"""The open database that the parts of `SqliteStore` share, and decorators that run a method of a part on a connection.

Work reaches a connection through a channel: a thread that owns the connection and runs queued work, or a lock around it in
the caller's thread. Each part implements one port of `treadle.kernel.store.ports`, which documents its methods.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from functools import cache
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Any, Protocol, TypeVar, cast

import apsw
import msgspec

from treadle.kernel.store.process import check_process
from treadle.model.clock import Clock
from treadle.model.errors import NotOpen, StoreError
from treadle.model.names import QueueKey
from treadle.model.tasks import NewTask
from treadle.stores.rules.units import Inserted, values_of
from treadle.stores.session import FILES
from treadle.stores.sqlite.connection.connect import Fuse, fetch_as, read_value, reading, to_json, translated, writing
from treadle.stores.sqlite.connection.schema import IN_MEMORY
from treadle.stores.statements import Statement, load_shared

T = TypeVar("T")
Work = Callable[[apsw.Connection], T]
Tidy = Callable[[], None]

_STATEMENTS = load_shared(__package__, *FILES)


class Channel(Protocol):
    """Runs work on one connection, one job at a time; `after` runs when a job is done and its caller has the result."""

    after: Tidy | None
    fuse: Fuse

    async def call(self, work: Work[T]) -> T:
        """Run the work; does not block the event loop if the channel has a thread."""

    def call_blocking(self, work: Work[T]) -> T:
        """Run the work from any thread except the event loop's, and wait for it."""

    async def close(self) -> None:
        """Finish queued work, then close the connection; idempotent."""


class InlineChannel:
    """Uses the connection in the caller's thread, under a lock."""

    def __init__(self, connect: Callable[[], apsw.Connection], shown: str) -> None:
        self.after: Tidy | None = None
        self._connect = connect
        self._shown = shown
        self.fuse = Fuse(shown)
        self._connection: apsw.Connection | None = None
        self._closed = False
        self._pid = os.getpid()
        self._lock = Lock()

    async def call(self, work: Work[T]) -> T:
        return self.call_blocking(work)

    def call_blocking(self, work: Work[T]) -> T:
        check_process(self._pid)
        with self._lock, self.fuse.guard():
            if self._closed:
                raise NotOpen
            if self._connection is None:
                self._connection = self._connect()
            result = work(self._connection)
            if self.after:
                self.after()
            return result

    async def close(self) -> None:
        with self._lock, translated(self._shown):
            self._closed = True
            if self._connection is not None:
                self._connection.close()
                self._connection = None


class Job:
    """Work, and the future of its caller."""

    __slots__ = ("future", "last", "loop", "work")

    def __init__(self, work: Work[Any], future: Any, loop: asyncio.AbstractEventLoop | None, *, last: bool = False) -> None:
        self.work, self.future, self.loop, self.last = work, future, loop, last

    def answer(self, result: object, error: BaseException | None) -> None:
        """Resolve the caller's future, unless its event loop is closed."""
        if self.loop is None:
            _resolve(self.future, result, error)
        else:
            try:
                self.loop.call_soon_threadsafe(_resolve, self.future, result, error)
            except RuntimeError:
                pass  # the loop is closed


def do_nothing(connection: apsw.Connection) -> None:
    """Do nothing: the work of the last job, which ends the thread."""


def _resolve(future: Any, result: object, error: BaseException | None) -> None:
    if not future.done():
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)


class ThreadChannel:
    """Owns the connection in a thread that runs jobs in order.

    Skips a job if its caller has given up before it started; finishes a job that has started.
    """

    def __init__(self, connect: Callable[[], apsw.Connection], shown: str, name: str) -> None:
        self.after: Tidy | None = None
        self._connect = connect
        self._shown = shown
        self.fuse = Fuse(shown)
        self._closed = False
        self._pid = os.getpid()
        self._lock = Lock()
        self._jobs: SimpleQueue[Job] = SimpleQueue()
        self._thread = Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    async def call(self, work: Work[T]) -> T:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._put(Job(work, future, loop))
        return await future

    def call_blocking(self, work: Work[T]) -> T:
        future: Future[T] = Future()
        self._put(Job(work, future, None))
        return future.result()

    async def close(self) -> None:
        loop = asyncio.get_running_loop()
        gone: asyncio.Future[None] = loop.create_future()
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._jobs.put(Job(do_nothing, gone, loop, last=True))
        await gone
        self._thread.join()

    def _put(self, job: Job) -> None:
        check_process(self._pid)
        with self._lock:
            if self._closed:
                raise NotOpen
            self._jobs.put(job)

    def _run(self) -> None:
        connection: apsw.Connection | None = None
        while not (job := self._jobs.get()).last:
            connection = self._do(job, connection)
            if connection is not None:
                self._run_maintenance()
        try:
            if connection is not None:
                connection.close()
        finally:
            job.answer(None, None)

    def _do(self, job: Job, connection: apsw.Connection | None) -> apsw.Connection | None:
        if job.future.cancelled():
            return connection
        try:
            with self.fuse.guard():
                connection = connection or self._connect()
                result = job.work(connection)
        except BaseException as error:
            job.answer(None, error)
        else:
            job.answer(result, None)
        return connection

    def _run_maintenance(self) -> None:
        """Run checkpoints; the next job reports errors."""
        try:
            with self.fuse.guard():
                if self.after:
                    self.after()
        except (apsw.Error, StoreError):
            pass


def complete(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never waits."""
    try:
        work.send(None)
    except StopIteration as end:
        return cast("T", end.value)
    work.close()
    raise RuntimeError("Work with a session of SQLite must not wait.")


class SqliteSession:
    """A `Session` on a connection, in the thread that owns it: nothing in it waits. `now` is the time at which it began."""

    def __init__(self, connection: apsw.Connection, now: int) -> None:
        self.connection = connection
        self.now = now

    async def fetch(self, name: str, /, **values: Any) -> list[Any]:
        statement, bindings = self._bind(name, values)
        rows: list[Any] = []
        for bound in bindings:
            rows += self.connection.execute(statement.text, bound).fetchall()
        return _decode(rows[0][0]) if statement.mode == "json" else rows

    async def fetch_as(self, kind: type[T], name: str, /, **values: Any) -> list[T]:
        statement, (bound,) = self._bind(name, values)
        if statement.mode == "json":
            return _decoder(kind)(read_value(self.connection, statement.text, bound))  # type: ignore[arg-type]
        return fetch_as(self.connection, kind, statement.text, bound)

    async def execute(self, name: str, /, **values: Any) -> int:
        statement, bindings = self._bind(name, values)
        changed = 0
        for bound in bindings:
            self.connection.execute(statement.text, bound).fetchall()
            changed += self.connection.changes()
        return changed

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        with writing(self.connection):
            yield

    def joined(self) -> AbstractAsyncContextManager[None]:
        return nullcontext() if self.connection.in_transaction else self.transaction()

    async def coordinate(self, name: str, /, **values: Any) -> None:
        """Do nothing: there is one writer."""

    async def insert_tasks(self, tasks: Sequence[NewTask], queue_ids: Mapping[QueueKey, int], *, checked: bool = False) -> Inserted:
        if not checked and await self.fetch("lock_guarded", queue_ids=list({queue_ids[task.queue] for task in tasks})):
            return Inserted(shut=True)
        rows = to_json([values_of(task, queue_ids[task.queue]) for task in tasks])
        count = await self.execute("insert_tasks", rows=rows)
        if count == len(tasks):
            return Inserted(tasks, {task.id for task in tasks})
        # SQLite numbers new rows after the greatest rowid, so these are the rows inserted just now.
        last_before = self.connection.last_insert_rowid() - count if count else 2**63 - 1
        inserted = Inserted(tasks)
        for task, (new, holder_id) in zip(
            tasks, await self.fetch("explain_inserts", rows=rows, last_before=last_before), strict=True
        ):
            if new:
                inserted.ids.add(task.id)
            elif holder_id is not None:
                inserted.holders[task.id] = holder_id
        return inserted

    def _bind(self, name: str, values: dict[str, Any]) -> tuple[Statement, list[dict[str, Any]]]:
        """Return the statement and its values: lists as JSON text, and the time; a set of them for each row in the mode `each`."""
        statement = _STATEMENTS[name]
        rows: Sequence[Any] = values.pop("rows") if statement.mode == "each" else ((),)
        bound = {name: to_json(value) if isinstance(value, list | tuple) else value for name, value in values.items()}
        bound["now"] = self.now
        return statement, [bound | dict(zip(statement.parameters, row, strict=True)) if row else bound for row in rows]


_decode = msgspec.json.Decoder().decode


@cache
def _decoder(kind: type[Any]) -> Callable[[str], list[Any]]:
    return msgspec.json.Decoder(list[kind]).decode  # type: ignore[valid-type]


def _not_open() -> apsw.Connection:
    raise NotOpen


SessionWork = Callable[[SqliteSession], Coroutine[Any, Any, T]]


class SqliteDatabase:
    """A SQLite database: the channels for writing and reading, the clock, and the queues that it has."""

    channel = ""
    seqs_in_order = True  # there is one writer

    def __init__(self, path: str | None, clock: Clock, *, inline: bool) -> None:
        self.path = path
        self.shown = path or IN_MEMORY
        self.inline = inline or path is None
        self.shared = None if self.inline else path
        """The path of a file that other processes may use, too."""
        self.clock = clock
        self.now = clock.now
        self.writer: Channel = InlineChannel(_not_open, self.shown)
        self.reader: Channel = self.writer
        self.queues: Mapping[QueueKey, int] = {}
        self.pid = os.getpid()
        """The process that opened it."""

    async def fetch(self, name: str, /, **values: Any) -> list[Any]:
        return await self._read(lambda session: session.fetch(name, **values))

    async def fetch_as(self, kind: type[T], name: str, /, **values: Any) -> list[T]:
        return await self._read(lambda session: session.fetch_as(kind, name, **values))

    async def execute(self, name: str, /, **values: Any) -> int:
        return await self.write(lambda session: session.execute(name, **values))

    def session(self, connection: apsw.Connection) -> SqliteSession:
        """Return a session on the connection."""
        return SqliteSession(connection, self.now())

    async def _read(self, work: SessionWork[T]) -> T:
        return await self.reader.call(lambda connection: complete(work(self.session(connection))))

    async def read(self, work: SessionWork[T]) -> T:
        def run(connection: apsw.Connection) -> T:
            with reading(connection):
                return complete(work(self.session(connection)))

        return await self.reader.call(run)

    async def use(self, work: SessionWork[T]) -> T:
        return await self.writer.call(lambda connection: complete(work(self.session(connection))))

    async def write(self, work: SessionWork[T]) -> T:
        def run(connection: apsw.Connection) -> T:
            with writing(connection):
                return complete(work(self.session(connection)))

        return await self.writer.call(run)
