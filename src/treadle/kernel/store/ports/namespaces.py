"""The port for namespaces as a whole: reading, writing and removing all rows of one, to move it to another store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from treadle.kernel.store.ports.clock import StoreClock

StoredRow = dict[str, Any]
"""A row as JSON values by column, the same in every kind of store."""

RowKey = tuple[Any, ...]
"""The key of a row in the order of its table."""


class RowPage(NamedTuple):
    """Rows of one namespace in a part of a table, and the key at which the next part begins; None: there is none."""

    rows: list[StoredRow]
    next_after: RowKey | None


class NamespaceStore(StoreClock, Protocol):
    """All rows of a namespace. Its tables are `TABLES` of `kernel.store.namespace_tables`."""

    async def list_namespaces(self) -> list[str]:
        """Return the namespaces with tasks, runs or records, in order."""

    async def count_held(self, namespace: str) -> int:
        """Return the number of the namespace's tasks that a worker holds."""

    async def read_rows(self, namespace: str, table: str, after: RowKey | None, limit: int) -> RowPage:
        """Return the namespace's rows among the next `limit` rows of the table, in the order of its key.

        A page may be empty although there are more: read on until `next_after` is None.
        """

    async def write_rows(self, table: str, rows: Sequence[StoredRow]) -> None:
        """Insert the rows in one transaction. Rows that exist stay as they are; lanes that exist get the given settings."""

    async def remove_rows(self, namespace: str, table: str, after: RowKey | None, limit: int) -> RowKey | None:
        """Remove the namespace's rows among the next `limit` rows of the table; return the key at which the next ones begin.

        Rows of tables that namespaces share are removed if nothing refers to them.
        """

    async def reserve_seqs(self, count: int) -> int:
        """Reserve that many numbers of moves, and return the number before the first of them."""

    async def fence_namespace(self, namespace: str, moved_to: str) -> None:
        """Refuse further changes in the namespace with `NamespaceMoved`, which names the URL `moved_to`.

        `UNFENCED` of `kernel.store.namespace_tables` lists the exceptions; `write_rows` and `remove_rows` still work. Applies to
        all processes, until `unfence_namespace`. Changes that began before have ended when this returns. Idempotent. Raises
        `StoreBusy` and changes nothing if some do not end within half a second, because all writers wait meanwhile.
        """

    async def unfence_namespace(self, namespace: str) -> None:
        """Allow changes in the namespace again. Idempotent. Raises `StoreBusy` as `fence_namespace` does."""
