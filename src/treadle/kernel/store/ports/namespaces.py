"""The port for namespaces as a whole."""

from __future__ import annotations

from typing import Protocol


class NamespaceStore(Protocol):
    """All namespaces of the store."""

    async def list_namespaces(self) -> list[str]:
        """Return the namespaces with tasks, runs or records, in order."""
