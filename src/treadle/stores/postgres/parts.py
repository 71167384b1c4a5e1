"""The base of the parts of `PostgresStore`: the shared pools and lanes, and decorators that run a method on a connection.

Each part implements one port of `treadle.kernel.store.ports`, which documents its methods.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from treadle.model.clock import Clock
from treadle.model.errors import NotOpen
from treadle.model.names import Lane
from treadle.stores.postgres.connection.address import Address
from treadle.stores.postgres.connection.connect import LISTS, Connection, Connector, Pool
from treadle.stores.postgres.connection.errors import translated
from treadle.stores.postgres.lanes import list_lanes

P = ParamSpec("P")
T = TypeVar("T")
S = TypeVar("S", bound="Part")

Work = Callable[Concatenate[S, Connection, P], Awaitable[T]]
Method = Callable[Concatenate[S, P], Coroutine[Any, Any, T]]


class Part:
    """A part of the store: the connector, the pools for work and for lists, and the known lanes."""

    def __init__(self, address: Address, clock: Clock) -> None:
        self.url = address.shown
        self._address = address
        self._clock = clock
        self._connector = Connector(address)
        self._hot: Pool | None = None
        self._reads: Pool | None = None
        self._lanes: dict[int, Lane] = {}
        self._lane_ids: dict[Lane, int] = {}
        self._slowed: set[int] = set()
        """Lanes that had a rate or were paused when they were last listed; a hint only."""

    @asynccontextmanager
    async def _working(self) -> AsyncIterator[Connection]:
        with translated(self.url):
            async with self._pool(self._hot).connection() as connection:
                yield connection

    @asynccontextmanager
    async def _reading(self) -> AsyncIterator[Connection]:
        with translated(self.url):
            async with self._pool(self._reads).connection() as connection:
                yield connection

    @asynccontextmanager
    async def _listing(self) -> AsyncIterator[Connection]:
        with translated(self.url):
            async with self._pool(self._reads).connection(LISTS) as connection:
                yield connection

    def _pool(self, pool: Pool | None) -> Pool:
        if pool is None:
            raise NotOpen
        return pool

    async def list_lanes(self) -> dict[int, Lane]:
        """List the lanes, and remember them and those that need a closer look."""
        async with self._working() as connection:
            self._lanes, self._slowed = await list_lanes(connection)
        self._lane_ids = {lane: lane_id for lane_id, lane in self._lanes.items()}
        return dict(self._lanes)


def works(work: Work[S, P, T]) -> Method[S, P, T]:
    """Run the method on a connection for statements that touch few rows."""

    @wraps(work)
    async def call(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        async with self._working() as connection:
            return await work(self, connection, *args, **kwargs)

    return call


def reads(work: Work[S, P, T]) -> Method[S, P, T]:
    """Run the method on a connection for lists and counts, which plans each statement for its values."""

    @wraps(work)
    async def call(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        async with self._reading() as connection:
            return await work(self, connection, *args, **kwargs)

    return call


def lists(work: Work[S, P, T]) -> Method[S, P, T]:
    """Run the method on a connection for lists of partitioned tables, which plans each statement once, for any values.

    So no condition that decides which index is used, and no bound of a page, may be optional.
    """

    @wraps(work)
    async def call(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        async with self._listing() as connection:
            return await work(self, connection, *args, **kwargs)

    return call
