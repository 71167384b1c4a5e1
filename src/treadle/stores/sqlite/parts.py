"""The base of the parts of `SqliteStore`: the shared channels, and decorators that run a method on one of them.

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

P = ParamSpec("P")
T = TypeVar("T")
S = TypeVar("S", bound="Part")

Work = Callable[Concatenate[S, apsw.Connection, P], T]
Method = Callable[Concatenate[S, P], Coroutine[Any, Any, T]]


class Part:
    """A part of the store: the clock, the channels for writing and reading, and the known lanes."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._writer: Channel = ClosedChannel()
        self._reader: Channel = self._writer
        self._lanes: Mapping[Lane, int] = {}

    async def now(self) -> int:
        """Return the clock that this store was given."""
        return self._clock.now()


def reads(work: Work[S, P, T]) -> Method[S, P, T]:
    """Run the method on the reading connection."""

    @wraps(work)
    async def call(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._reader.call(lambda connection: work(self, connection, *args, **kwargs))

    return call


def uses_writer(work: Work[S, P, T]) -> Method[S, P, T]:
    """Run the method on the writing connection; it begins transactions itself."""

    @wraps(work)
    async def call(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._writer.call(lambda connection: work(self, connection, *args, **kwargs))

    return call


def writes(work: Work[S, P, T]) -> Method[S, P, T]:
    """Run the method on the writing connection, in a transaction."""

    def transact(self: S, connection: apsw.Connection, /, *args: P.args, **kwargs: P.kwargs) -> T:
        with writing(connection):
            return work(self, connection, *args, **kwargs)

    return wraps(work)(uses_writer(transact))
