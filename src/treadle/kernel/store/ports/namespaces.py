"""The port for namespaces as a whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from treadle.kernel.store.transfer import NamespaceImport, StoredRow


class NamespaceStore(Protocol):
    """All rows of a namespace. Their tables are `TABLES` of `kernel.store.transfer`."""

    async def list_namespaces(self) -> list[str]:
        """Return the namespaces with tasks, runs or records, in order."""

    async def export_rows(self, namespace: str, receive: Callable[[str, StoredRow], None]) -> None:
        """Pass all rows of the namespace with the names of their tables to `receive`, as they are at one moment.

        They have the same form in every kind of store, and come in an order in which they can be written.
        """

    async def import_rows(self, incoming: NamespaceImport) -> None:
        """Insert the rows of an export in one transaction; if anything in it raises, nothing is imported.

        Before, the rows that the namespace has are passed to `refuse_row`; after, those that it has then to `check_row`. Then it
        calls `finish`, and commits. Shared rows that exist stay as they are, except that lanes get the settings.
        """
