"""The open database that the parts of `PostgresStore` share, and decorators that run a method of a part on a connection.

Each part implements one port of `treadle.kernel.store.ports`, which documents its methods.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from treadle.model.clock import Clock
from treadle.model.errors import NotOpen
from treadle.model.names import Lane
from treadle.stores.postgres.connection.address import Address
from treadle.stores.postgres.connection.connect import LISTS, Connection, Connector, Pool, row_count, texts
from treadle.stores.postgres.connection.errors import translated
from treadle.stores.postgres.limits import insert_lanes, list_lanes
from treadle.stores.shared import FILES, Port
from treadle.stores.statements import load_shared

if TYPE_CHECKING:
    from treadle.stores.postgres.servers import Attendance

P = ParamSpec("P")
T = TypeVar("T")
S = TypeVar("S", bound="Part")

_STATEMENTS = load_shared(__package__, *FILES)

Work = Callable[Concatenate[S, Connection, P], Awaitable[T]]
Method = Callable[Concatenate[S, P], Coroutine[Any, Any, T]]


class Database:
    """A schema of a PostgreSQL database: the connector, the pools for work and for lists, and the known lanes."""

    def __init__(self, address: Address, clock: Clock) -> None:
        self.url = address.shown
        self.address = address
        self.clock = clock
        self.connector = Connector(address)
        self.hot: Pool | None = None
        self.reads: Pool | None = None
        self.attendance: Attendance | None = None
        """The sessions of the servers of this process."""
        self.lanes: dict[int, Lane] = {}
        self.lane_ids: dict[Lane, int] = {}
        self.slowed: set[int] = set()
        """Lanes that had a rate or were paused when they were last listed; a hint only."""

    @asynccontextmanager
    async def working(self) -> AsyncIterator[Connection]:
        """Borrow a connection for statements that touch few rows."""
        with translated(self.url):
            async with self.pool(self.hot).connection() as connection:
                yield connection

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[Connection]:
        """Borrow a connection for lists and counts, which plans each statement for its values."""
        with translated(self.url):
            async with self.pool(self.reads).connection() as connection:
                yield connection

    @asynccontextmanager
    async def listing(self) -> AsyncIterator[Connection]:
        """Borrow a connection for lists of partitioned tables, which plans each statement once."""
        with translated(self.url):
            async with self.pool(self.reads).connection(LISTS) as connection:
                yield connection

    async def fetch(self, name: str, /, **values: Any) -> list[Any]:
        """Run a statement on a connection of its mode (`hot` or `lists`; otherwise one for reading)."""
        statement, parameters, mode = _STATEMENTS[name]
        borrow = self.working if mode == "hot" else self.listing if mode == "lists" else self.reading
        async with borrow() as connection:
            return await connection.fetch(statement, *[values[parameter] for parameter in parameters])

    async def fetch_as(self, kind: type[T], name: str, /, **values: Any) -> list[T]:
        """Run a statement like `fetch`; return its rows as records."""
        return [kind(**texts(row)) for row in await self.fetch(name, **values)]

    async def execute(self, name: str, /, **values: Any) -> int:
        """Run a statement; return the number of changed rows."""
        statement, parameters, _ = _STATEMENTS[name]
        async with self.working() as connection:
            return row_count(await connection.execute(statement, *[values[parameter] for parameter in parameters]))

    def pool(self, pool: Pool | None) -> Pool:
        """Return the pool; raises `NotOpen` without one."""
        if pool is None:
            raise NotOpen
        return pool

    async def list_lanes(self) -> dict[int, Lane]:
        """List the lanes, and remember them and those that need a closer look."""
        async with self.working() as connection:
            self.lanes, self.slowed = await list_lanes(connection)
        self.lane_ids = {lane: lane_id for lane_id, lane in self.lanes.items()}
        return dict(self.lanes)

    async def find_lane_ids(self, lanes: Sequence[Lane]) -> dict[Lane, int]:
        """Return the ids of the lanes; create missing lanes."""
        missing = {lane for lane in lanes if lane not in self.lane_ids}
        if missing:
            await self.list_lanes()
            missing = {lane for lane in missing if lane not in self.lane_ids}
        if missing:
            async with self.working() as connection:
                await insert_lanes(connection, missing)
            await self.list_lanes()
        return {lane: self.lane_ids[lane] for lane in lanes}


class Part(Port):
    """A part of the store."""

    _database: Database


def works(work: Work[S, P, T]) -> Method[S, P, T]:
    """Run the method on a connection for statements that touch few rows."""

    @wraps(work)
    async def call(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        async with self._database.working() as connection:
            return await work(self, connection, *args, **kwargs)

    return call


def reads(work: Work[S, P, T]) -> Method[S, P, T]:
    """Run the method on a connection for lists and counts, which plans each statement for its values."""

    @wraps(work)
    async def call(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        async with self._database.reading() as connection:
            return await work(self, connection, *args, **kwargs)

    return call


def lists(work: Work[S, P, T]) -> Method[S, P, T]:
    """Run the method on a connection for lists of partitioned tables, which plans each statement once, for any values.

    So no condition that decides which index is used, and no bound of a page, may be optional.
    """

    @wraps(work)
    async def call(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        async with self._database.listing() as connection:
            return await work(self, connection, *args, **kwargs)

    return call
