"""The PostgreSQL store on a connection that belongs to the caller: everything it writes is part of the caller's transaction."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from treadle.kernel.store.ports import TransactionStore
from treadle.kernel.store.units import Answer, Unit
from treadle.model.clock import Clock
from treadle.model.errors import NotOpen, StoreBusy, StoreError, StoreUnavailable
from treadle.stores.postgres.borrowed.drivers import adapt, beneath_django
from treadle.stores.postgres.commit.commit import commit
from treadle.stores.postgres.connection.address import parse_address
from treadle.stores.postgres.connection.connect import Connection
from treadle.stores.postgres.connection.errors import REPEATABLE, translated
from treadle.stores.postgres.database import Database
from treadle.stores.postgres.store import PostgresStore
from treadle.stores.rules.signals import format_lanes
from treadle.stores.statements import load_statements

T = TypeVar("T")

_SQL = load_statements(__package__, "borrowed.sql")
_TRIES = 3


class BorrowedDatabase(Database):
    """A database whose only connection belongs to the caller, while the caller's transaction runs."""

    connection: Connection | None = None

    @asynccontextmanager
    async def working(self) -> AsyncIterator[Connection]:
        if self.connection is None:
            raise NotOpen
        try:
            with translated(self.url):
                yield self.connection
        except StoreUnavailable as error:  # nobody can repeat it on this connection
            raise StoreError(str(error)) from error

    reading = listing = working


class BorrowedStore(PostgresStore, TransactionStore):
    """A store for the calls inside `transact`; it has no connections of its own and is never opened.

    With `notify`, the caller's commit wakes waiting workers.
    """

    parallel_commits = 1

    def __init__(self, url: str, connection: Any, *, clock: Clock, notify: bool = False) -> None:
        self._caller = BorrowedDatabase(parse_address(url), clock)
        super().__init__(url, clock=clock, database=self._caller)
        self._borrowed = beneath_django(connection)
        self._notify = notify
        self._ready: set[int] = set()

    async def transact(self, operate: Callable[[], Awaitable[T]]) -> T:
        """Run the operation on the connection: completely, or not at all if it raises, and the transaction stays usable.

        Outside a transaction, the operation is one by itself. Repeats an operation that met a concurrent change.
        """
        connection: Any = await adapt(self._borrowed)
        for tried in range(1, _TRIES + 1):
            try:
                async with self._session(connection):
                    return await operate()
            except StoreBusy:
                if tried == _TRIES:
                    raise
        raise AssertionError

    @asynccontextmanager
    async def _session(self, connection: Any) -> AsyncIterator[None]:
        with translated(self.url):
            path = await connection.fetchval(_SQL["search_path"])
            self._ready.clear()
            async with connection.transaction():
                await connection.fetchval(_SQL["set_path"], self._database.address.schema)
                if self._database.connector.clock_offset_for:
                    await connection.fetchval(_SQL["set_clock"], str(self._database.connector.clock_offset_for))
                self._caller.connection = connection
                try:
                    yield
                finally:
                    self._caller.connection = None
                if self._notify and self._ready:
                    await connection.fetchval(_SQL["notify"], self._database.address.channel, format_lanes(sorted(self._ready)))
                await connection.fetchval(_SQL["set_path"], path)

    async def commit(self, units: Sequence[Unit]) -> list[Answer]:
        if not units:
            return []
        lanes = {task.lane for unit in units for task in unit.tasks}
        if lanes:
            await self._database.find_lane_ids(list(lanes))
        async with self._database.working() as connection:
            try:
                return await commit(connection, self._database.lane_ids, units)
            except REPEATABLE as error:
                raise StoreBusy("Another transaction changed the same rows: roll back and repeat yours.") from error

    async def notify(self, lane_ids: Sequence[int]) -> None:
        """Note the lanes for the signal that is sent with the transaction."""
        self._ready.update(lane_ids)
