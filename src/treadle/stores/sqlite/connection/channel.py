"""Channels to a connection: a thread that owns it and runs queued work, or a lock around it in the caller's thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from typing import Any, Protocol, TypeVar

import apsw

from treadle.model.errors import NotOpen, StoreError
from treadle.stores.sqlite.connection.connect import data_version
from treadle.stores.sqlite.connection.errors import Fuse, translated

T = TypeVar("T")
Work = Callable[[apsw.Connection], T]
Tidy = Callable[[], None]

POLL_EVERY = 0.025
"""Seconds between polls for changes by other processes, while there is a subscriber."""


class Channel(Protocol):
    """Runs work on one connection, one job at a time; `after` runs when a job is done and its caller has the result."""

    after: Tidy | None
    fuse: Fuse
    on_change: Tidy | None
    """Called when another connection has changed the database, in the thread of this connection."""

    async def call(self, work: Work[T]) -> T:
        """Run the work; does not block the event loop if the channel has a thread."""

    def call_blocking(self, work: Work[T]) -> T:
        """Run the work from any thread except the event loop's, and wait for it."""

    async def close(self) -> None:
        """Finish queued work, then close the connection; idempotent."""

    def poll(self) -> None:
        """Start or stop polling for changes, depending on `on_change`."""


class ClosedChannel:
    """The channel of a store that is not open."""

    after: Tidy | None = None
    fuse = Fuse("")
    on_change: Tidy | None = None

    async def call(self, work: Work[T]) -> T:
        raise NotOpen

    def call_blocking(self, work: Work[T]) -> T:
        raise NotOpen

    async def close(self) -> None:
        pass

    def poll(self) -> None:
        pass


class InlineChannel:
    """Uses the connection in the caller's thread, under a lock."""

    def __init__(self, connect: Callable[[], apsw.Connection], shown: str) -> None:
        self.after: Tidy | None = None
        self.on_change: Tidy | None = None
        self._connect = connect
        self._shown = shown
        self.fuse = Fuse(shown)
        self._connection: apsw.Connection | None = None
        self._closed = False
        self._lock = Lock()
        self._timer: asyncio.TimerHandle | None = None
        self._seen: int | None = None

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

    def poll(self) -> None:
        if self._timer:
            self._timer.cancel()
            self._timer = None
        if self.on_change and not self._closed:
            seen = self._seen
            with suppress(StoreError):  # the next job reports the error
                seen = self.call_blocking(data_version)
            if seen != self._seen and self._seen is not None:
                self.on_change()
            self._seen = seen
            self._timer = asyncio.get_running_loop().call_later(POLL_EVERY, self.poll)

    async def close(self) -> None:
        if self._timer:
            self._timer.cancel()
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
    """Do nothing: the work of jobs that only wake the thread."""


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
        self.on_change: Tidy | None = None
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

    def poll(self) -> None:
        self._put(_Job(_nothing, Future(), None))

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
        seen: int | None = None
        while True:
            try:
                job = self._jobs.get(timeout=POLL_EVERY if self.on_change else None)
            except Empty:
                job = _IDLE
            if job.last:
                break
            if job is not _IDLE:
                connection = self._do(job, connection)
            if connection is not None:
                seen = self._tend(connection, seen)
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

    def _tend(self, connection: apsw.Connection, seen: int | None) -> int | None:
        """Run checkpoints and poll for changes of other processes; the next job reports errors."""
        try:
            after, changed = self.after, self.on_change  # other threads may remove them meanwhile
            with self.fuse.guard():
                if after:
                    after()
                version = data_version(connection) if changed else None
        except (apsw.Error, StoreError):
            return seen
        if changed and seen is not None and version != seen:
            changed()
        return version


_IDLE = _Job(_nothing, Future(), None)
