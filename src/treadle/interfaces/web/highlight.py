"""Syntax highlighting of AFL, as escaped lines that a page can number and mark."""

from __future__ import annotations

import re
from collections.abc import Iterator

from markupsafe import Markup, escape

from treadle.lang.tokens import KEYWORDS, TYPES

_TOKENS = re.compile(
    r"(?P<comment>//[^\n]*|/\*.*?(?:\*/|\Z))"
    r'|(?P<string>"""[\s\S]*?(?:"""|\Z)|"(?:\\.|[^"\\\n])*"?)'
    r"|(?P<number>\b\d+(?:\.\d+)?\b)"
    r"|(?P<ref>\$\.?\w*)"
    r"|(?P<word>\b[A-Za-z_]\w*\b)",
    re.DOTALL,
)
_TYPES = frozenset(TYPES)


def highlight(text: str) -> list[Markup]:
    """The lines of the source with their tokens marked up."""
    lines: list[list[Markup]] = [[]]
    for kind, part in _parts(text):
        for number, piece in enumerate(part.split("\n")):
            if number:
                lines.append([])
            if piece:
                shown = escape(piece)
                lines[-1].append(Markup('<span class="tok-{}">{}</span>').format(kind, shown) if kind else shown)
    return [Markup("").join(line) for line in lines]


def _parts(text: str) -> Iterator[tuple[str, str]]:
    """The pieces of the text with their kinds; an empty kind has no colour."""
    at = 0
    for found in _TOKENS.finditer(text):
        if found.start() > at:
            yield "", text[at : found.start()]
        kind, part = found.lastgroup or "", found.group()
        if kind == "word":
            kind = "type" if part in _TYPES else "keyword" if part in KEYWORDS else ""
        yield kind, part
        at = found.end()
    if at < len(text):
        yield "", text[at:]
