"""Conversion between qualified names and tool names, which must not contain dots."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable

_LONGEST = 64
_ILLEGAL = re.compile(r"[^A-Za-z0-9_-]")


class ToolNames:
    """A mapping in both directions, without collisions, deterministic for the same names."""

    def __init__(self, names: Iterable[str]) -> None:
        self._tools: dict[str, str] = {}
        self._names: dict[str, str] = {}
        for name in names:
            self._add(name)

    def _add(self, name: str) -> None:
        if name in self._tools:
            return
        tool = _ILLEGAL.sub("_", name.replace(".", "__")) or "_"
        if len(tool) > _LONGEST or tool in self._names:
            digest = hashlib.sha256(name.encode()).hexdigest()[:8]
            tool = f"{tool[: _LONGEST - 9]}_{digest}"
        self._tools[name] = tool
        self._names[tool] = name

    def tool(self, name: str) -> str:
        """Return the tool name of a qualified name."""
        return self._tools[name]

    def name(self, tool: str) -> str | None:
        """Return the qualified name, or None for an unknown tool."""
        return self._names.get(tool)
