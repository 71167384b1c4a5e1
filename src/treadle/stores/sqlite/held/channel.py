"""The channel of a held transaction: the writing thread serves only this caller until the transaction ends."""

from __future__ import annotations

import asyncio
from queue import Empty, SimpleQueue
from threading import Lock
from time import perf_counter
from typing import Any, NamedTuple, TypeVar

import apsw

from treadle.model.errors import NotOpen, StoreBusy
from treadle.stores.sqlite.connection.channel import Channel, Tidy, Work
from treadle.stores.sqlite.connection.connect import writing
from treadle.stores.sqlite.connection.errors import Fuse, translated

T = TypeVar("T")

HELD_FOR = 4.0
"""Seconds after which a held transaction is rolled back; shorter than other processes wait for the write lock."""


class _Rollback(Exception):
    """Ends the transaction without a commit."""


class _Job(NamedTuple):
    """Work, or None for the end of the transaction, which `commits` or not."""

    work: Work[Any] | None
    future: asyncio.Future[Any]
    commits: bool = False


class HeldChannel:
    """Runs work inside one transaction of the writer; nothing else is written meanwhile, by any process."""

    after: Tidy | None = None

    def __init__(self, writer: Channel, shown: str) -> None:
        self.fuse: Fuse = writer.fuse
        self._writer, self._shown = writer, shown
        self._loop = asyncio.get_running_loop()
        self._jobs: SimpleQueue[_Job] = SimpleQueue()
        self._lock = Lock()
        self._ended: str | None = None
        self._began: asyncio.Future[None] = self._loop.create_future()
        self._holding = self._loop.create_task(self._hold())

    async def begin(self) -> None:
        """Wait until the transaction has begun."""
        await asyncio.wait([self._began, self._holding], return_when=asyncio.FIRST_COMPLETED)
        if not self._began.done():
            await self._holding

    async def end(self, *, commits: bool) -> None:
        """Commit or roll back, and wait until that is done; raises if the commit failed or the transaction had ended before."""
        self._put(_Job(None, self._loop.create_future(), commits))
        holding = asyncio.shield(self._holding)
        try:
            await holding
        except _Rollback:
            if commits:
                raise StoreBusy(self._ended or "The transaction was rolled back.") from None

    async def call(self, work: Work[T]) -> T:
        future: asyncio.Future[T] = self._loop.create_future()
        if not self._put(_Job(work, future)):
            raise StoreBusy(self._ended or "The transaction has ended.")
        return await future

    def call_blocking(self, work: Work[T]) -> T:
        raise NotOpen

    async def close(self) -> None:
        pass  # it ends with its transaction

    def _put(self, job: _Job) -> bool:
        with self._lock:
            if self._ended is None:
                self._jobs.put(job)
            return self._ended is None

    async def _hold(self) -> None:
        await self._writer.call(self._serve)

    def _serve(self, connection: apsw.Connection) -> None:
        """Run jobs in a transaction until one of them ends it; called in the writing thread."""
        until = perf_counter() + HELD_FOR
        ended = "The transaction has ended."
        try:
            with writing(connection):
                self._tell(self._began, None, None)
                while True:
                    try:
                        job = self._jobs.get(timeout=max(until - perf_counter(), 0.0))
                    except Empty:
                        ended = f"The transaction took longer than {HELD_FOR:g} s, and was rolled back: keep it short."
                        raise _Rollback from None
                    if job.work is None:
                        if not job.commits:
                            raise _Rollback
                        return
                    self._do(job, job.work, connection)
                    if not connection.in_transaction:
                        ended = "SQLite rolled the transaction back after an error."
                        raise _Rollback
        finally:
            self._finish(ended)

    def _do(self, job: _Job, work: Work[Any], connection: apsw.Connection) -> None:
        try:
            with translated(self._shown):
                result = work(connection)
        except Exception as error:
            self._tell(job.future, None, error)
        else:
            self._tell(job.future, result, None)

    def _finish(self, ended: str) -> None:
        with self._lock:
            self._ended = ended
            while not self._jobs.empty():
                self._tell(self._jobs.get().future, None, StoreBusy(ended))

    def _tell(self, future: asyncio.Future[Any], result: object, error: Exception | None) -> None:
        def resolve() -> None:
            if not future.done():
                if error is None:
                    future.set_result(result)
                else:
                    future.set_exception(error)

        try:
            self._loop.call_soon_threadsafe(resolve)
        except RuntimeError:
            pass  # the loop is closed
