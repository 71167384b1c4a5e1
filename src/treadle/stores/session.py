"""Sessions: an open connection that runs named statements, so that the parts of both stores are written once above their SQL.

A statement has the same name, parameters and columns in both stores.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol, TypeVar

from treadle.model.names import QueueKey
from treadle.model.tasks import NewTask
from treadle.stores.rules.units import Inserted

T = TypeVar("T")


FILES = tuple(
    f"{name}.sql"
    for name in (
        *("tasks", "dead_letters", "runs", "records", "log", "search", "traces", "streams", "operators", "usage", "retention"),
        *("queues", "limits", "servers", "commit/settlements", "commit/guards", "commit/keys", "commit/inserts", "commit/rows"),
        *("commit/records", "commit/messages", "namespaces"),
    )
)
"""The files of each store with statements that sessions run; a name occurs in only one of them."""


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


class Session(Statements, Protocol):
    """Runs statements on one connection, in the transaction that is open there."""

    def transaction(self) -> AbstractAsyncContextManager[Any]:
        """Run the block in a transaction, or in a savepoint of the one that is open."""

    def joined(self) -> AbstractAsyncContextManager[Any]:
        """Run the block in the transaction that is open, or else in one of its own."""

    async def coordinate(self, name: str, /, **values: Any) -> None:
        """Run a statement that concurrent transactions make necessary, such as a lock; do nothing in a store with one writer."""

    async def insert_tasks(self, tasks: Sequence[NewTask], queue_ids: Mapping[QueueKey, int], *, checked: bool = False) -> Inserted:
        """Insert the tasks that do not exist; of two with one unique key, the first.

        Unless guarded queues have been `checked`, inserts nothing if there is one.
        """


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
