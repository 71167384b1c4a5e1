"""The SQLite store inside a held transaction."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import apsw

from treadle.kernel.store.ports import TransactionStore
from treadle.model.clock import Clock
from treadle.model.errors import Unsupported
from treadle.stores.sqlite.connection.channel import ThreadChannel, Work
from treadle.stores.sqlite.connection.connect import add_shapes, has_shapes, remove_shapes
from treadle.stores.sqlite.held.channel import HeldChannel
from treadle.stores.sqlite.held.statements import Values, run_statement
from treadle.stores.sqlite.store import SqliteStore

T = TypeVar("T")


class _Reader:
    """The channel for reads, which use views that the writing connection has only then."""

    def __init__(self, channel: HeldChannel) -> None:
        self._channel = channel

    def __getattr__(self, name: str) -> Any:
        return getattr(self._channel, name)

    async def call(self, work: Work[T]) -> T:
        def shaped(connection: apsw.Connection) -> T:
            if not has_shapes(connection):
                add_shapes(connection)
            return work(connection)

        return await self._channel.call(shaped)


class HeldStore(SqliteStore, TransactionStore):
    """A store on the transaction that `hold` has begun."""

    def __init__(self, store: SqliteStore, channel: HeldChannel, *, clock: Clock) -> None:
        super().__init__(store._database.path, clock=clock)
        self._database.writer, self._database.reader = channel, _Reader(channel)
        self._signals = None  # the store that holds the transaction signals its end
        self._database.lanes = dict(store._database.lanes)
        self.ready: set[int] = set()
        """The lanes in which the transaction has made tasks ready."""

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

    async def notify(self, lane_ids: Sequence[int]) -> None:
        self.ready.update(lane_ids)


@asynccontextmanager
async def hold(store: SqliteStore, clock: Clock) -> AsyncIterator[HeldStore]:
    """Hold one transaction of the open store until the block ends: commit it, or roll it back if the block raises."""
    if not isinstance(store._database.writer, ThreadChannel):
        raise Unsupported("A transaction needs a store in a file (or PostgreSQL, with engine.within), not one in memory.")
    channel = HeldChannel(store._database.writer, store._database.shown)
    commits = False
    try:
        await channel.begin()
        yield HeldStore(store, channel, clock=clock)
        commits = True
    finally:
        await channel.end(commits=commits)
