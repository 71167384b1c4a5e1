"""The open database that the parts of `SqliteStore` share, and decorators that run a method of a part on a connection.

Work reaches a connection through a channel: a thread that owns the connection and runs queued work, or a lock around it in
the caller's thread. Each part implements one port of `treadle.kernel.store.ports`, which documents its methods.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Future
from functools import cache, wraps
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

import apsw
import msgspec

from treadle.model.clock import Clock
from treadle.model.errors import NotOpen, StoreError
from treadle.model.names import Lane
from treadle.stores.shared import FILES, Port
from treadle.stores.sqlite.connection.connect import Fuse, fetch_as, read_value, to_json, translated, writing
from treadle.stores.sqlite.connection.schema import IN_MEMORY
from treadle.stores.statements import load_shared

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


class ClosedChannel:
    """The channel of a store that is not open."""

    after: Tidy | None = None
    fuse = Fuse("")

    async def call(self, work: Work[T]) -> T:
        raise NotOpen

    def call_blocking(self, work: Work[T]) -> T:
        raise NotOpen

    async def close(self) -> None:
        pass


class InlineChannel:
    """Uses the connection in the caller's thread, under a lock."""

    def __init__(self, connect: Callable[[], apsw.Connection], shown: str) -> None:
        self.after: Tidy | None = None
        self._connect = connect
        self._shown = shown
        self.fuse = Fuse(shown)
        self._connection: apsw.Connection | None = None
        self._closed = False
        self._lock = Lock()

    async def call(self, work: Work[T]) -> T:
        return self.call_blocking(work)

    def call_blocking(self, work: Work[T]) -> T:
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


class _Job:
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


def _nothing(connection: apsw.Connection) -> None:
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
        self._lock = Lock()
        self._jobs: SimpleQueue[_Job] = SimpleQueue()
        self._thread = Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    async def call(self, work: Work[T]) -> T:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._put(_Job(work, future, loop))
        return await future

    def call_blocking(self, work: Work[T]) -> T:
        future: Future[T] = Future()
        self._put(_Job(work, future, None))
        return future.result()

    async def close(self) -> None:
        loop = asyncio.get_running_loop()
        gone: asyncio.Future[None] = loop.create_future()
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._jobs.put(_Job(_nothing, gone, loop, last=True))
        await gone
        self._thread.join()

    def _put(self, job: _Job) -> None:
        with self._lock:
            if self._closed:
                raise NotOpen
            self._jobs.put(job)

    def _run(self) -> None:
        connection: apsw.Connection | None = None
        while not (job := self._jobs.get()).last:
            connection = self._do(job, connection)
            if connection is not None:
                self._tend()
        try:
            if connection is not None:
                connection.close()
        finally:
            job.answer(None, None)

    def _do(self, job: _Job, connection: apsw.Connection | None) -> apsw.Connection | None:
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

    def _tend(self) -> None:
        """Run checkpoints; the next job reports errors."""
        try:
            with self.fuse.guard():
                if self.after:
                    self.after()
        except (apsw.Error, StoreError):
            pass


P = ParamSpec("P")
S = TypeVar("S", bound="Part")

PartWork = Callable[Concatenate[S, apsw.Connection, P], T]
Method = Callable[Concatenate[S, P], Coroutine[Any, Any, T]]


class Database:
    """A SQLite database: the channels for writing and reading, the clock, and the known lanes."""

    def __init__(self, path: str | None, clock: Clock, *, inline: bool) -> None:
        self.path = path
        self.shown = path or IN_MEMORY
        self.inline = inline or path is None
        self.shared = None if self.inline else path
        """The path of a file that other processes may use, too."""
        self.clock = clock
        self.now = clock.now
        self.writer: Channel = ClosedChannel()
        self.reader: Channel = self.writer
        self.lanes: Mapping[Lane, int] = {}

    async def fetch(self, name: str, /, **values: object) -> list[Any]:
        """Run a statement on the reading connection."""
        statement, bound = _STATEMENTS[name].text, self._bind(values)
        return await self.reader.call(lambda connection: connection.execute(statement, bound).fetchall())

    async def fetch_as(self, kind: type[T], name: str, /, **values: object) -> list[T]:
        """Run a statement on the reading connection; return its rows, or the elements of its JSON array, as records."""
        statement, _, mode = _STATEMENTS[name]
        bound = self._bind(values)
        if mode == "json":
            decode = _decoder(kind)  # type: ignore[arg-type]
            return await self.reader.call(lambda connection: decode(read_value(connection, statement, bound)))
        return await self.reader.call(lambda connection: fetch_as(connection, kind, statement, bound))

    async def execute(self, name: str, /, **values: object) -> int:
        """Run a statement in a transaction; return the number of changed rows."""

        def change(connection: apsw.Connection) -> int:
            with writing(connection):
                connection.execute(_STATEMENTS[name].text, self._bind(values))
                return connection.changes()

        return await self.writer.call(change)

    def _bind(self, values: Mapping[str, object]) -> dict[str, Any]:
        """Return the values with lists as JSON text, and the time as `now`."""
        bound: dict[str, Any] = {
            name: to_json(value) if isinstance(value, list | tuple) else value for name, value in values.items()
        }
        return bound | {"now": self.now()}


@cache
def _decoder(kind: type[Any]) -> Callable[[str], list[Any]]:
    return msgspec.json.Decoder(list[kind]).decode  # type: ignore[valid-type]


class Part(Port):
    """A part of the store."""

    _database: Database


def reads(work: PartWork[S, P, T]) -> Method[S, P, T]:
    """Run the method on the reading connection."""

    @wraps(work)
    async def call(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._database.reader.call(lambda connection: work(self, connection, *args, **kwargs))

    return call


def uses_writer(work: PartWork[S, P, T]) -> Method[S, P, T]:
    """Run the method on the writing connection; it begins transactions itself."""

    @wraps(work)
    async def call(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._database.writer.call(lambda connection: work(self, connection, *args, **kwargs))

    return call


def writes(work: PartWork[S, P, T]) -> Method[S, P, T]:
    """Run the method on the writing connection, in a transaction."""

    def transact(self: S, connection: apsw.Connection, /, *args: P.args, **kwargs: P.kwargs) -> T:
        with writing(connection):
            return work(self, connection, *args, **kwargs)

    return wraps(work)(uses_writer(transact))
