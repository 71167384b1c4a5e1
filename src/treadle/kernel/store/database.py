"""The database below the ports: it runs statements by name, so that most methods of the ports are written once for all stores.

A statement has the same name, parameters and columns in every store, and each store has its own SQL for it.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from treadle.kernel.store.queries import NEWEST, Place
from treadle.model.ids import id_time

P = ParamSpec("P")
S = TypeVar("S", bound="Port")
T = TypeVar("T")


class Statements(Protocol):
    """Runs statements by name. Ignores values that a statement has no parameter for; a list becomes an array.

    A list of tuples becomes rows: an array for each column (PostgreSQL) or JSON (SQLite).
    """

    async def fetch(self, name: str, /, **values: Any) -> list[Any]:
        """Run a statement; return its rows."""

    async def fetch_as(self, kind: type[T], name: str, /, **values: Any) -> list[T]:
        """Run a statement; return its rows as records with the columns as fields, and ids as text."""

    async def execute(self, name: str, /, **values: Any) -> int:
        """Run a statement; return the number of changed rows."""


Work = Callable[[Any], Coroutine[Any, Any, T]]
"""Work with a session."""


class Database(Statements, Protocol):
    """An open database, whose statements run in transactions of their own."""

    channel: str
    """The channel of its signals; empty in a store that has none."""
    seqs_in_order: bool
    """Whether transitions are committed in the order of their seqs."""

    async def read(self, work: Work[T]) -> T:
        """Run work that only reads, at one instant if the store can."""

    async def use(self, work: Work[T]) -> T:
        """Run work that begins its own transactions, with statements that are planned for their values."""

    async def write(self, work: Work[T]) -> T:
        """Run work in one transaction."""


class Port:
    """A port on a database."""

    def __init__(self, database: Database) -> None:
        self._database = database


PortWork = Callable[Concatenate[S, Any, P], Coroutine[Any, Any, T]]
Method = Callable[Concatenate[S, P], Coroutine[Any, Any, T]]


def reads(work: PortWork[S, P, T]) -> Method[S, P, T]:
    """Run the method with a session that only reads."""

    @wraps(work)
    async def call(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._database.read(lambda session: work(self, session, *args, **kwargs))

    return call


def uses(work: PortWork[S, P, T]) -> Method[S, P, T]:
    """Run the method with a session; it begins its own transactions."""

    @wraps(work)
    async def call(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._database.use(lambda session: work(self, session, *args, **kwargs))

    return call


def writes(work: PortWork[S, P, T]) -> Method[S, P, T]:
    """Run the method with a session in a transaction."""

    @wraps(work)
    async def call(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._database.write(lambda session: work(self, session, *args, **kwargs))

    return call


class ReadPort(Port):
    """A port with reads."""

    async def _find(self, kind: type[T], name: str, /, **values: Any) -> T | None:
        """Return the first row as a record."""
        return next(iter(await self._database.fetch_as(kind, name, **values)), None)

    async def _list_ids(self, name: str, /, **values: Any) -> list[str]:
        """Return the first column."""
        return [row[0] for row in await self._database.fetch(name, **values)]

    async def _place(self, statement: str, before: Place | None, before_id: str | None) -> dict[str, Any]:
        """Return the position before a page, as values: that of the row `before_id` if there is no other."""
        if before is None and before_id is not None:
            rows = await self._database.fetch(statement, id=before_id)
            before = Place(rows[0][0] if rows else id_time(before_id), before_id)
        place = before or NEWEST
        return {"before_at": place.created_at, "before_id": place.id}


def unique(values: Iterable[str]) -> list[str]:
    """Return the values without repetitions."""
    return list(dict.fromkeys(values))
