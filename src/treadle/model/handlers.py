"""A handler registration: which function of which module handles the tasks of a facet, for runners that load it themselves."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class HandlerRegistration:
    """Code for the tasks of `facet_name`, found again by its module and entry point; times are milliseconds since 1970.

    `checksum` only names a state of the module: changing it makes runners load the module anew.
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
