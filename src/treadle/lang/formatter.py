"""Formats AFL: normalizes indentation and spaces, keeps the author's line breaks and comments.

It works on tokens, so nothing is lost: the meaning (the digest) does not change, and formatting twice changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from treadle.lang.diagnostics import Diagnostic, Reporter, Source
from treadle.lang.literals import dedent, find_end
from treadle.lang.parse import parse
from treadle.lang.tokens import CLOSERS, OPENERS, OPERAND_ENDS, WORDS, Token, TokenRole

_INDENT = "    "
_TIGHT_AFTER = frozenset(["(", "[", "#{"])
_TIGHT_BEFORE = frozenset([")", "]", ",", ";", ":", "?"])


class CannotFormat(ValueError):
    """The text has a syntax error; `diagnostics` has the place."""

    def __init__(self, diagnostics: tuple[Diagnostic, ...]) -> None:
        super().__init__("\n".join(diagnostic.render() for diagnostic in diagnostics))
        self.diagnostics = diagnostics


def format_source(text: str, name: str = "<source>") -> str:
    """Return the formatted text; raise `CannotFormat` for text that does not parse."""
    reporter = Reporter()
    parsed = parse(Source(name, text), reporter)
    if parsed.file is None:
        raise CannotFormat(reporter.sorted())
    writer = _Writer(text)
    for token in sorted(parsed.lexed.tokens[:-1] + parsed.lexed.comments, key=lambda token: token.start):
        writer.write(token)
    return writer.finish()


@dataclass(slots=True)
class _Writer:
    source: str
    pieces: list[str] = field(default_factory=list)
    previous: Token | None = None
    unary: bool = False  # the previous token was a sign before its operand
    in_list: list[bool] = field(default_factory=list)
    open: list[int] = field(default_factory=list)  # for each open bracket, the level of its line
    level: int = 0
    operand_before: bool = False  # the last token that is not a comment ends an operand

    def write(self, token: Token) -> None:
        previous = self.previous
        gap = self.source[previous.end if previous else 0 : token.start]
        newlines = gap.count("\n") if previous else 0
        if previous is None or newlines:
            self._break(token, newlines)
        elif self._spaced(previous, token):
            self.pieces.append(" ")
        self.pieces.append(self._text(token))
        self._track(token)
        self.previous = token

    def finish(self) -> str:
        return "".join([*self.pieces, "\n"]) if self.pieces else ""

    def _break(self, token: Token, newlines: int) -> None:
        """Begin a new line, after at most one empty line, and none next to the inside of a brace."""
        self.level = self.open[-1] + 1 if self.open else 0
        if token.kind in CLOSERS and self.open:
            self.level = self.open[-1]
        elif (token.kind == "=>" or token.role is TokenRole.MODIFIER) and not (self.open and self._inside_list()):
            self.level += 1
        previous = self.previous
        if previous is not None:
            hugging = previous.kind in OPENERS or token.kind in CLOSERS
            self.pieces.append("\n\n" if newlines > 1 and not hugging else "\n")
        self.pieces.append(_INDENT * self.level)

    def _inside_list(self) -> bool:
        return bool(self.in_list) and self.in_list[-1]

    def _spaced(self, previous: Token, token: Token) -> bool:
        before, after = previous.kind, token.kind
        if "comment" in (before, after):
            return True
        if self.unary:
            return before == after == "+"
        if before in _TIGHT_AFTER or after in _TIGHT_BEFORE:
            return False
        if after == "}":
            return before != "{" and not self._inside_list()
        if after == "(":
            return before not in WORDS or previous.role not in (None, TokenRole.STATEMENT)
        if after == "[":
            return not _ends_operand(previous)
        return True

    def _track(self, token: Token) -> None:
        kind = token.kind
        if kind == "comment":
            return
        self.unary = kind == "!" or (kind in ("+", "-") and not self.operand_before)
        self.operand_before = _ends_operand(token)
        if kind in OPENERS:
            self.open.append(self.level)
            self.in_list.append(kind != "{")
        elif kind in CLOSERS and self.open:
            self.open.pop()
            self.in_list.pop()

    def _text(self, token: Token) -> str:
        raw = self.source[token.start : token.end]
        if token.kind == "comment":
            return self._comment(raw)
        if token.kind == "code":
            return self._code(raw, token.value)
        return raw

    def _comment(self, raw: str) -> str:
        """Align lines that begin with a star below the first one; keep other comments unchanged."""
        lines = [line.rstrip() for line in raw.split("\n")]
        if len(lines) > 1 and all(line.lstrip().startswith("*") for line in lines[1:]):
            lines[1:] = [f"{_INDENT * self.level} {line.lstrip()}" for line in lines[1:]]
        return "\n".join(lines)

    def _code(self, raw: str, code: str) -> str:
        """Return the script at the right indentation, if it parses back to the same code."""
        if "\n" not in code and "\n" not in raw:
            text = f"{{ {code} }}" if code else "{ }"
        else:
            pad = _INDENT * (self.level + 1)
            lines = [pad + line if line else "" for line in code.split("\n")]
            text = "\n".join(["{", *lines, _INDENT * self.level + "}"])
        end = find_end(text, 1)
        same = end == len(text) - 1 and dedent(text[1:end])[0] == code
        return text if same else raw


def _ends_operand(token: Token) -> bool:
    return token.kind in OPERAND_ENDS and token.role in (None, TokenRole.CONSTANT)
