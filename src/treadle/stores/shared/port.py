"""What both stores offer to the ports that are written once: the statements of their own `.sql` files, by name.

A statement has the same name, parameters and columns in both. The ports of `treadle.kernel.store.ports` document the methods.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol, TypeVar

from treadle.kernel.store.queries import NEWEST, Place
from treadle.model.ids import id_time

T = TypeVar("T")

_NAMES = ("tasks", "dead_letters", "runs", "records", "log", "search", "traces", "streams", "operators", "usage")

FILES = tuple(f"{name}.sql" for name in _NAMES)
"""The files with these statements; a name occurs in only one of them."""


class Database(Protocol):
    """An open database. It ignores values that the statement has no parameter for; a list becomes an array."""

    async def fetch(self, name: str, /, **values: Any) -> list[Any]:
        """Run a statement that only reads; return its rows."""

    async def fetch_as(self, kind: type[T], name: str, /, **values: Any) -> list[T]:
        """Run a statement that only reads; return its rows as records with the columns as fields, and ids as text."""

    async def execute(self, name: str, /, **values: Any) -> int:
        """Run a statement in a transaction of its own; return the number of changed rows."""


class Port:
    """A port on a database."""

    def __init__(self, database: Database) -> None:
        self._database = database

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
