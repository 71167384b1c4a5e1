"""Completions and hovers for an editor in a page, which sends all sources with each request; as `treadle lsp` gives them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lsprotocol import types

from treadle.interfaces.lsp import description
from treadle.interfaces.lsp.completion import complete
from treadle.interfaces.lsp.context import context_at
from treadle.interfaces.lsp.document import Document
from treadle.interfaces.lsp.workspace import Workspace

Place = tuple[Sequence[str], int, int, int]
"""The texts, the number of one of them, and a line and a column in it: from 0, in UTF-16 units."""


def completions(place: Place) -> list[dict[str, Any]]:
    """Return the items that fit at a place: label, kind, detail, documentation, text to insert (`$0`: the cursor) and order."""
    workspace, path, offset = _opened(place)
    items = complete(workspace.surroundings(path), path, context_at(workspace.documents[path].text, offset))
    return [
        {
            "label": item.label,
            "kind": "" if item.kind is None else types.CompletionItemKind(item.kind).name.lower(),
            "detail": item.detail or "",
            "info": item.documentation.value if isinstance(item.documentation, types.MarkupContent) else "",
            "insert": item.insert_text or item.label,
            "order": item.sort_text or f"1{item.label}",
        }
        for item in items
    ]


def hover(place: Place) -> dict[str, Any] | None:
    """Return the heading and the documentation of the name at a place, with its offsets; None if there is no name."""
    workspace, path, offset = _opened(place)
    occurrence = workspace.index(path).at(path, offset)
    if occurrence is None:
        return None
    document = workspace.documents[path]
    ends = document.range(occurrence.start, occurrence.end)
    return {
        "heading": description.heading(occurrence.symbol),
        "info": description.documentation(occurrence.symbol),
        "start": [ends.start.line, ends.start.character],
        "end": [ends.end.line, ends.end.character],
    }


def _opened(place: Place) -> tuple[Workspace, str, int]:
    sources, number, line, column = place
    workspace = Workspace()
    for index, text in enumerate(sources):
        workspace.set(f"/sources/{index}.afl", Document(text))
    path = f"/sources/{number}.afl"
    return workspace, path, workspace.documents[path].offset(types.Position(line, column))
