"""Formats AFL: normalizes indentation and spaces, keeps the author's line breaks and comments.

It works on tokens, so nothing is lost: the meaning (the digest) does not change, and formatting twice changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from treadle.lang.diagnostics import Diagnostic, Reporter, Source
from treadle.lang.parse import parse
from treadle.lang.scripts import dedent, find_end
from treadle.lang.tokens import LITERALS, REFERENCES, Token

_INDENT = "    "
_OPENERS = frozenset(["_LPAR", "LBRACE", "LSQB", "MAP_OPEN"])
_CLOSERS = frozenset(["RPAR", "RBRACE", "RSQB"])
_OPERAND_ENDS = LITERALS | REFERENCES | {"RPAR", "RSQB", "RBRACE"}
_TIGHT_AFTER = frozenset(["_LPAR", "LSQB", "MAP_OPEN"])
_TIGHT_BEFORE = frozenset(["RPAR", "RSQB", "_COMMA", "_SEMI", "_COLON"])
_CONTINUED = frozenset(["_ARROW", "WITH", "_AS"])


class CannotFormat(ValueError):
    """The text has a syntax error; `diagnostics` has the place."""

    def __init__(self, diagnostics: tuple[Diagnostic, ...]) -> None:
        super().__init__("\n".join(each.render() for each in diagnostics))
        self.diagnostics = diagnostics


def format_source(text: str, name: str = "<source>") -> str:
    """Return the formatted text; raise `CannotFormat` for text that does not parse."""
    reporter = Reporter()
    parsed = parse(Source(name, text), reporter, keep_tokens=True)
    if parsed.file is None:
        raise CannotFormat(reporter.sorted())
    writer = _Writer(text)
    for token in sorted(parsed.lexer.tokens + parsed.lexer.comments, key=lambda each: each.start_pos):
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
    last_kind: str = ""  # of the last token that is not a comment

    def write(self, token: Token) -> None:
        previous = self.previous
        gap = self.source[previous.end_pos if previous else 0 : token.start_pos]
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
        if token.type in _CLOSERS and self.open:
            self.level = self.open[-1]
        elif token.type in _CONTINUED and not (self.open and self._inside_list()):
            self.level += 1
        previous = self.previous
        if previous is not None:
            hugging = previous.type in _OPENERS or token.type in _CLOSERS
            self.pieces.append("\n\n" if newlines > 1 and not hugging else "\n")
        self.pieces.append(_INDENT * self.level)

    def _inside_list(self) -> bool:
        return bool(self.in_list) and self.in_list[-1]

    def _spaced(self, previous: Token, token: Token) -> bool:
        before, after = previous.type, token.type
        if "COMMENT" in (before, after):
            return True
        if self.unary:
            return before == after == "PLUS"
        if before in _TIGHT_AFTER or after in _TIGHT_BEFORE:
            return False
        if after == "RBRACE":
            return before != "LBRACE" and not self._inside_list()
        if after == "_LPAR":
            return not (before in REFERENCES or before in ("SYS_LOG", "SYS_ASSERT"))
        if after == "LSQB":
            return before not in _OPERAND_ENDS
        return True

    def _track(self, token: Token) -> None:
        kind = token.type
        if kind == "COMMENT":
            return
        operand_before = self.last_kind in _OPERAND_ENDS
        self.unary = kind == "BANG" or (kind in ("PLUS", "MINUS") and not operand_before)
        self.last_kind = kind
        if kind in _OPENERS:
            self.open.append(self.level)
            self.in_list.append(kind != "LBRACE")
        elif kind in _CLOSERS and self.open:
            self.open.pop()
            self.in_list.pop()

    def _text(self, token: Token) -> str:
        raw = self.source[token.start_pos : token.end_pos]
        if token.type == "COMMENT":
            return self._comment(raw)
        if token.type == "CODE":
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
