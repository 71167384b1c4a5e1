"""The open database that the parts of `SqliteStore` share, and decorators that run a method of a part on a connection.

Each part implements one port of `treadle.kernel.store.ports`, which documents its methods.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

import apsw

from treadle.model.clock import Clock
from treadle.model.names import Lane
from treadle.stores.sqlite.connection.channel import Channel, ClosedChannel
from treadle.stores.sqlite.connection.connect import writing
from treadle.stores.sqlite.connection.schema import IN_MEMORY

P = ParamSpec("P")
T = TypeVar("T")
S = TypeVar("S", bound="Part")

Work = Callable[Concatenate[S, apsw.Connection, P], T]
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


class Part:
    """A part of the store."""

    def __init__(self, database: Database) -> None:
        self._database = database


def reads(work: Work[S, P, T]) -> Method[S, P, T]:
    """Run the method on the reading connection."""

    @wraps(work)
    async def call(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._database.reader.call(lambda connection: work(self, connection, *args, **kwargs))

    return call


def uses_writer(work: Work[S, P, T]) -> Method[S, P, T]:
    """Run the method on the writing connection; it begins transactions itself."""

    @wraps(work)
    async def call(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._database.writer.call(lambda connection: work(self, connection, *args, **kwargs))

    return call


def writes(work: Work[S, P, T]) -> Method[S, P, T]:
    """Run the method on the writing connection, in a transaction."""

    def transact(self: S, connection: apsw.Connection, /, *args: P.args, **kwargs: P.kwargs) -> T:
        with writing(connection):
            return work(self, connection, *args, **kwargs)

    return wraps(work)(uses_writer(transact))
