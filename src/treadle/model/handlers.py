"""Handler registrations: the module and function that handle a facet's tasks, for runners that load handlers themselves."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from treadle.model.errors import UnreadableValue
from treadle.model.values import UNREADABLE_MARK


@dataclass(slots=True)
class HandlerRegistration:
    """The handler of the tasks of `facet_name`, located by module and entry point; times are milliseconds since 1970.

    `checksum` identifies a version of the module: changing it makes runners reload the module.
    """

    facet_name: str
    module_uri: str
    """`package.module`, or `file:///path/to/module.py`."""
    entrypoint: str = "handle"
    version: str = "1.0.0"
    checksum: str = ""
    timeout_ms: int = 30_000
    requirements: list[str] = field(default_factory=list)
    metadata: dict[str, Any] = field(default_factory=dict)
    created: int = 0
    updated: int = 0

    @property
    def unreadable(self) -> str | None:
        """Why the stored metadata or requirements cannot be read, if they cannot; no runner loads such a handler."""
        return str(self.metadata.get("message")) if UNREADABLE_MARK in self.metadata else None

    def check_readable(self) -> None:
        """Raise `UnreadableValue` if the stored metadata or requirements cannot be read."""
        if self.unreadable is not None:
            raise UnreadableValue(f"The handler of {self.facet_name} cannot be read: {self.unreadable} Register it again.")
