"""Sessions: an open connection that runs named statements, so that the parts of both stores are written once above their SQL.

A statement has the same name, parameters and columns in both stores.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

from treadle.kernel.store.database import Statements
from treadle.model.names import QueueKey
from treadle.model.tasks import NewTask
from treadle.stores.rules.units import Inserted

FILES = tuple(
    f"{name}.sql"
    for name in (
        *("tasks", "dead_letters", "runs", "records", "log", "search", "traces", "streams", "operators", "usage", "retention"),
        *("queues", "limits", "servers", "commit/settlements", "commit/guards", "commit/keys", "commit/inserts", "commit/rows"),
        *("commit/records", "commit/messages", "namespaces", "metrics"),
    )
)
"""The files of each store with statements that sessions run; a name occurs in only one of them."""


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
