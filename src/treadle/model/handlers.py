"""Handler registrations: the module and function that handle a facet's tasks, for runners that load handlers themselves."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


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
