"""Splits any text into tokens, also while it is being typed: what cannot be read is skipped.

The compiler's lexer stops at the first error and needs the parser's state; an editor needs neither.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from treadle.lang.scripts import find_end
from treadle.lang.tokens import KEYWORDS

_IDENT = r"[A-Za-z_][A-Za-z0-9_]*"
_TOKEN = re.compile(
    rf"(?P<doc>/\*\*(?!/)[\s\S]*?(?:\*/|\Z))"
    rf"|(?P<comment>//[^\n]*|/\*[\s\S]*?(?:\*/|\Z))"
    rf"|(?P<word>{_IDENT}(?:\.{_IDENT})*)"
    rf"|(?P<input>\$(?:\.{_IDENT})*)"
    rf'|(?P<string>"[^"\\]*(?:\\[\s\S][^"\\]*)*(?:"|\Z))'
    rf"|(?P<number>[0-9]+(?:\.[0-9]+(?:[eE][+-]?[0-9]+)?)?)"
    rf"|(?P<sign>\+\+|=>|==|!=|<=|>=|&&|\|\||\#\{{|[-+*/%<>!=(){{}}\[\],:;.?])"
    rf"|(?P<blank>\s+)"
)


@dataclass(frozen=True, slots=True)
class Token:
    """`code` is the Python of a script with its braces; the kinds are otherwise those of the pattern's groups."""

    kind: str
    text: str
    start: int
    first_of_line: bool

    @property
    def end(self) -> int:
        return self.start + len(self.text)


def scan(text: str) -> Iterator[Token]:
    """Yield the tokens and comments of a text."""
    at, fresh, script = 0, True, 0  # script: how many tokens ago it was said
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            at += 1
            continue
        kind, part = match.lastgroup or "", match.group()
        if kind == "blank":
            fresh = fresh or "\n" in part
            at = match.end()
            continue
        if part == "{" and script:
            end = find_end(text, at + 1)
            kind, part = "code", text[at:] if end is None else text[at : end + 1]
        yield Token(kind, part, at, fresh)
        if kind not in ("comment", "doc"):
            script = 2 if part == "script" else script - 1 if script == 2 and kind == "word" else 0
            fresh = False
        at += len(part)


def is_keyword(token: Token) -> bool:
    return token.kind == "word" and token.text in KEYWORDS
