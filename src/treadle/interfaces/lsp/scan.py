"""Splits any text into tokens, also while it is being typed, and classifies them for highlighting; unreadable text is skipped.

The compiler's parser knows more, but only about text that it can read: a keyword is one where the grammar has a place for it.
Here, and in the grammars for editors, a keyword is one unless `:`, `=` or `(` shows that it names something.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from treadle.lang.literals import find_end
from treadle.lang.tokens import IDENTIFIER, KEYWORDS, OPERATORS, PATTERNS, TYPES, TokenRole

_OPEN = {
    "doc": r"/\*\*(?!/)[\s\S]*?(?:\*/|\Z)",
    "comment": r"//[^\n]*|/\*[\s\S]*?(?:\*/|\Z)",
    "input": rf"\$(?:\.{IDENTIFIER})*",
    "string": r'"[^"\\]*(?:\\[\s\S][^"\\]*)*(?:"|\\?\Z)',
    "sign": rf"{PATTERNS['sign']}|[.?/]",
}
"""Patterns that also match tokens without an end."""
_TOKEN = re.compile("|".join(f"(?P<{kind}>{_OPEN.get(kind, pattern)})" for kind, pattern in PATTERNS.items()))
NAMING = r"[ \t]*(?:=(?![=>])|:|\()"
"""The signs after a word that names something."""
NAMING_LIKE_TYPE = r"[ \t]*[:(]"
"""The signs after the name of a built-in type that names something else; `=` follows a type before its default."""
_NAMING, _NAMING_LIKE_TYPE = re.compile(NAMING), re.compile(NAMING_LIKE_TYPE)


class Class(StrEnum):
    """The sorts of tokens that highlighters distinguish."""

    COMMENT = "comment"
    STRING = "string"
    NUMBER = "number"
    KEYWORD = "keyword"
    CONSTANT = "constant"
    TYPE = "type"
    INPUT = "input"
    NAME = "name"
    OPERATOR = "operator"
    PUNCTUATION = "punctuation"
    CODE = "code"


_CLASSES = {
    "doc": Class.COMMENT,
    "comment": Class.COMMENT,
    "input": Class.INPUT,
    "string": Class.STRING,
    "float": Class.NUMBER,
    "integer": Class.NUMBER,
    "code": Class.CODE,
}
CALLED = frozenset(word for word, role in KEYWORDS.items() if role in (TokenRole.STATEMENT, TokenRole.OPERATOR, TokenRole.CONTROL))
"""Keywords that a parenthesis may follow: `in (`, `case (`, `sys.log(`."""


@dataclass(frozen=True, slots=True)
class ScannedToken:
    """`code` is the Python of a script with its braces; the kinds are otherwise those of `PATTERNS`."""

    kind: str
    text: str
    start: int
    first_of_line: bool
    class_: Class

    @property
    def end(self) -> int:
        return self.start + len(self.text)


def scan(text: str) -> Iterator[ScannedToken]:
    """Yield the tokens and comments of a text."""
    at, fresh, script = 0, True, 0  # script: how many tokens may still come before its brace
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
        class_ = _CLASSES.get(kind) or _class(kind, part, text, at + len(part))
        yield ScannedToken(kind, part, at, fresh, class_)
        if kind not in ("comment", "doc"):
            named = part == "script" and class_ is Class.KEYWORD
            script = 2 if named else script - 1 if script == 2 and kind == "word" else 0
            fresh = False
        at += len(part)


def _class(kind: str, part: str, text: str, end: int) -> Class:
    if kind == "sign":
        return Class.OPERATOR if part in OPERATORS else Class.PUNCTUATION
    role = KEYWORDS.get(part)
    if role is None:
        return Class.TYPE if part in TYPES and not _NAMING_LIKE_TYPE.match(text, end) else Class.NAME
    naming = _NAMING.match(text, end)
    if naming is not None and not (naming.group().endswith("(") and part in CALLED):
        return Class.NAME
    return {TokenRole.CONSTANT: Class.CONSTANT, TokenRole.OPERATOR: Class.OPERATOR}.get(role, Class.KEYWORD)
