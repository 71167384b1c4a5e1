"""`JSONEmitter`: a program as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


class JSONEmitter:
    """Writes programs as JSON, with or without the places of their nodes in the source."""

    def __init__(self, include_locations: bool = True, indent: int | None = 2) -> None:
        self.include_locations, self.indent = include_locations, indent

    def emit_dict(self, ast: Mapping[str, Any]) -> dict[str, Any]:
        """Return the program as JSON objects; raise `ValueError` with the problems of an invalid one."""
        if errors := getattr(ast, "errors", ()):
            raise ValueError("\n".join(error.render() for error in errors))
        program: dict[str, Any] = dict(ast) if self.include_locations else _without_locations(ast)
        return program

    def emit(self, ast: Mapping[str, Any]) -> str:
        """Return the program as JSON text."""
        return json.dumps(self.emit_dict(ast), indent=self.indent)


def _without_locations(node: Any) -> Any:
    if isinstance(node, Mapping):
        return {key: _without_locations(value) for key, value in node.items() if key != "location"}
    return [_without_locations(part) for part in node] if isinstance(node, list) else node


def emit_dict(ast: Mapping[str, Any], include_locations: bool = True) -> dict[str, Any]:
    """Return the program as JSON objects."""
    return JSONEmitter(include_locations).emit_dict(ast)


def emit_json(ast: Mapping[str, Any], include_locations: bool = True, indent: int | None = 2) -> str:
    """Return the program as JSON text."""
    return JSONEmitter(include_locations, indent).emit(ast)
