"""The SQLite store inside a held transaction: the writing thread serves only this caller until the transaction ends.

The caller's own statements may change neither Treadle's tables nor the transaction.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import cache
from queue import Empty, SimpleQueue
from threading import Lock
from time import perf_counter
from typing import Any, TypeVar

import apsw

from treadle.kernel.store.ports import TransactionStore
from treadle.model.clock import Clock
from treadle.model.errors import InvalidInput, NotOpen, Refused, StoreBusy, Unsupported
from treadle.stores.sqlite.connection.connect import Fuse, add_shapes, has_shapes, remove_shapes, translated, writing
from treadle.stores.sqlite.connection.schema import own_names
from treadle.stores.sqlite.database import Channel, Job, ThreadChannel, Tidy, Work, do_nothing
from treadle.stores.sqlite.store import SqliteStore
from treadle.stores.statements import load_statements

Values = Sequence[Any] | Mapping[str, Any]

_SQL = load_statements(__package__, "caller_transaction.sql")

_WRITES = {
    apsw.SQLITE_INSERT: 0,
    apsw.SQLITE_UPDATE: 0,
    apsw.SQLITE_DELETE: 0,
    apsw.SQLITE_DROP_TABLE: 0,
    apsw.SQLITE_DROP_VIEW: 0,
    apsw.SQLITE_ALTER_TABLE: 1,
    apsw.SQLITE_CREATE_INDEX: 1,
    apsw.SQLITE_DROP_INDEX: 1,
    apsw.SQLITE_CREATE_TRIGGER: 1,
    apsw.SQLITE_DROP_TRIGGER: 1,
}
"""Operations that change a table, and which of the two names is the table's."""

_REFUSED = {
    apsw.SQLITE_TRANSACTION: "The block is one transaction, which Treadle begins and ends: raise an exception to roll it back",
    apsw.SQLITE_SAVEPOINT: "The block is one transaction without savepoints of your own",
    apsw.SQLITE_ATTACH: "Other databases cannot be attached to the store",
    apsw.SQLITE_DETACH: "Databases cannot be detached from the store",
    apsw.SQLITE_PRAGMA: "A pragma could change how the store keeps its data",
    apsw.SQLITE_CREATE_TEMP_TABLE: "A temporary table could hide one of Treadle's",
    apsw.SQLITE_CREATE_TEMP_VIEW: "A temporary view could hide one of Treadle's tables",
    apsw.SQLITE_CREATE_TEMP_TRIGGER: "Temporary triggers could change Treadle's tables",
    apsw.SQLITE_CREATE_TEMP_INDEX: "Temporary indexes are not supported here",
    apsw.SQLITE_DROP_TEMP_VIEW: "Temporary views are Treadle's own",
}

_SCHEMA = ("sqlite_master", "sqlite_schema", "sqlite_temp_master")


@cache
def _protected() -> frozenset[str]:
    return own_names() | {"sqlite_sequence"}


def run_statement(connection: apsw.Connection, statement: str, values: Values) -> list[tuple[Any, ...]]:
    """Execute statements of the caller, completely or not at all, and return the rows; raises `Refused` or `InvalidInput`."""
    created: list[str] = []

    def check(operation: int, first: str | None, second: str | None, database: str | None, inside: str | None) -> int:
        reason = _REFUSED.get(operation)
        if reason is None and operation in _WRITES:
            table = ((first, second)[_WRITES[operation]] or "").lower()
            if table in _protected() and not (operation == apsw.SQLITE_INSERT and table in _SCHEMA):
                reason = f"{table} is a table of Treadle's, which only Treadle may change"
        if reason is not None:
            raise Refused(f"{reason}.")
        if operation in (apsw.SQLITE_CREATE_TABLE, apsw.SQLITE_ALTER_TABLE):
            created.append((second if operation == apsw.SQLITE_ALTER_TABLE else first) or "")
        return apsw.SQLITE_OK

    try:
        with writing(connection):
            connection.authorizer = check
            try:
                rows = connection.cursor().execute(statement, values, can_cache=False).fetchall()
            finally:
                connection.authorizer = None
            for table in created:
                for (target,) in connection.execute(_SQL["list_references"], {"table": table}):
                    if str(target).lower() in _protected():
                        raise Refused(
                            f"{table} refers to {target}, a table of Treadle's, whose rows it would keep from being pruned."
                        )
    except (apsw.SQLError, apsw.BindingsError, apsw.MismatchError, apsw.ConstraintError, TypeError) as error:
        raise InvalidInput(f"The statement cannot be executed: {error}.") from error
    return rows


T = TypeVar("T")

TRANSACTION_TIMEOUT = 4.0
"""Seconds after which a caller's transaction is rolled back; shorter than other processes wait for the write lock."""


class _Rollback(Exception):
    """Ends the transaction without a commit."""


class CallerTransactionChannel:
    """Runs work inside one transaction of the writer; nothing else is written meanwhile, by any process."""

    after: Tidy | None = None

    def __init__(self, writer: Channel, shown: str) -> None:
        self.fuse: Fuse = writer.fuse
        self._writer, self._shown = writer, shown
        self._loop = asyncio.get_running_loop()
        self._jobs: SimpleQueue[Job] = SimpleQueue()
        self._lock = Lock()
        self._commits = False
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
        self._commits = commits
        self._put(Job(do_nothing, self._loop.create_future(), self._loop, last=True))
        holding = asyncio.shield(self._holding)
        try:
            await holding
        except _Rollback:
            if commits:
                raise StoreBusy(self._ended or "The transaction was rolled back.") from None

    async def call(self, work: Work[T]) -> T:
        future: asyncio.Future[T] = self._loop.create_future()
        if not self._put(Job(work, future, self._loop)):
            raise StoreBusy(self._ended or "The transaction has ended.")
        return await future

    def call_blocking(self, work: Work[T]) -> T:
        raise NotOpen

    async def close(self) -> None:
        pass  # it ends with its transaction

    def _put(self, job: Job) -> bool:
        with self._lock:
            if self._ended is None:
                self._jobs.put(job)
            return self._ended is None

    async def _hold(self) -> None:
        await self._writer.call(self._serve)

    def _serve(self, connection: apsw.Connection) -> None:
        """Run jobs in a transaction until one of them ends it; called in the writing thread."""
        until = perf_counter() + TRANSACTION_TIMEOUT
        ended = "The transaction has ended."
        try:
            with writing(connection):
                Job(do_nothing, self._began, self._loop).answer(None, None)
                while True:
                    try:
                        job = self._jobs.get(timeout=max(until - perf_counter(), 0.0))
                    except Empty:
                        ended = f"The transaction took longer than {TRANSACTION_TIMEOUT:g} s, and was rolled back: keep it short."
                        raise _Rollback from None
                    if job.last:
                        if not self._commits:
                            raise _Rollback
                        return
                    self._do(job, connection)
                    if not connection.in_transaction:
                        ended = "SQLite rolled the transaction back after an error."
                        raise _Rollback
        finally:
            self._finish(ended)

    def _do(self, job: Job, connection: apsw.Connection) -> None:
        try:
            with translated(self._shown):
                result = job.work(connection)
        except Exception as error:
            job.answer(None, error)
        else:
            job.answer(result, None)

    def _finish(self, ended: str) -> None:
        with self._lock:
            self._ended = ended
            while not self._jobs.empty():
                self._jobs.get().answer(None, StoreBusy(ended))


class _Reader:
    """The channel for reads, which use views that the writing connection has only then."""

    def __init__(self, channel: CallerTransactionChannel) -> None:
        self._channel = channel

    def __getattr__(self, name: str) -> Any:
        return getattr(self._channel, name)

    async def call(self, work: Work[T]) -> T:
        def shaped(connection: apsw.Connection) -> T:
            if not has_shapes(connection):
                add_shapes(connection)
            return work(connection)

        return await self._channel.call(shaped)


class SqliteCallerTransaction(SqliteStore, TransactionStore):
    """A store on the transaction that `open_caller_transaction` has begun."""

    def __init__(self, store: SqliteStore, channel: CallerTransactionChannel, *, clock: Clock) -> None:
        super().__init__(store._database.path, clock=clock)
        self._database.writer, self._database.reader = channel, _Reader(channel)
        self._signals = None  # the store that holds the transaction signals its end
        self._database.queues = dict(store._database.queues)
        self.ready: set[int] = set()
        """The queues in which the transaction has made tasks ready."""

    async def transact(self, operate: Callable[[], Awaitable[T]]) -> T:
        """Run the operation; each of its commits is a savepoint of the transaction."""
        return await operate()

    async def execute(self, statement: str, values: Values) -> list[tuple[Any, ...]]:
        """Execute a statement of the caller and return its rows."""

        def work(connection: apsw.Connection) -> list[tuple[Any, ...]]:
            if has_shapes(connection):
                remove_shapes(connection)
            return run_statement(connection, statement, values)

        return await self._database.writer.call(work)

    async def notify(self, queue_ids: Sequence[int]) -> None:
        self.ready.update(queue_ids)


@asynccontextmanager
async def open_caller_transaction(store: SqliteStore, clock: Clock) -> AsyncIterator[SqliteCallerTransaction]:
    """Hold one transaction of the open store until the block ends: commit it, or roll it back if the block raises."""
    if not isinstance(store._database.writer, ThreadChannel):
        raise Unsupported("A transaction needs a store in a file (or PostgreSQL, with engine.within), not one in memory.")
    channel = CallerTransactionChannel(store._database.writer, store._database.shown)
    commits = False
    try:
        await channel.begin()
        yield SqliteCallerTransaction(store, channel, clock=clock)
        commits = True
    finally:
        await channel.end(commits=commits)
