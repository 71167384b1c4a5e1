"""The tokens of AFL: one description as data, for the lexer, the formatter, highlighters and editor grammars.

`PATTERNS` are regular expressions in the common subset of Python, ECMAScript and TextMate (Oniguruma), in the order in which
they are tried. `KEYWORDS` are contextual: each is a keyword only where the grammar has a place for it, and a plain name
everywhere else. `SIGNS` are all operators and brackets, longest first.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from treadle.lang.nodes import BUILTIN_TYPES, Span


class TokenRole(StrEnum):
    """The part that a word plays; highlighters map it to a colour."""

    DECLARATION = "declaration"
    CONTROL = "control"
    MODIFIER = "modifier"
    DIRECTIVE = "directive"
    OPERATOR = "operator"
    CONSTANT = "constant"
    STATEMENT = "statement"


KEYWORDS = {
    "namespace": TokenRole.DECLARATION,
    "use": TokenRole.DECLARATION,
    "uses": TokenRole.DECLARATION,
    "facet": TokenRole.DECLARATION,
    "event": TokenRole.DECLARATION,
    "workflow": TokenRole.DECLARATION,
    "implicit": TokenRole.DECLARATION,
    "schema": TokenRole.DECLARATION,
    "with": TokenRole.MODIFIER,
    "as": TokenRole.MODIFIER,
    "after": TokenRole.MODIFIER,
    "andThen": TokenRole.CONTROL,
    "yield": TokenRole.CONTROL,
    "foreach": TokenRole.CONTROL,
    "failFast": TokenRole.CONTROL,
    "collectErrors": TokenRole.CONTROL,
    "in": TokenRole.OPERATOR,
    "prompt": TokenRole.CONTROL,
    "system": TokenRole.DIRECTIVE,
    "template": TokenRole.DIRECTIVE,
    "model": TokenRole.DIRECTIVE,
    "script": TokenRole.CONTROL,
    "true": TokenRole.CONSTANT,
    "false": TokenRole.CONSTANT,
    "null": TokenRole.CONSTANT,
    "when": TokenRole.CONTROL,
    "case": TokenRole.CONTROL,
    "catch": TokenRole.CONTROL,
    "not": TokenRole.OPERATOR,
    "contains": TokenRole.OPERATOR,
    "startsWith": TokenRole.OPERATOR,
    "endsWith": TokenRole.OPERATOR,
    "sys.log": TokenRole.STATEMENT,
    "sys.assert": TokenRole.STATEMENT,
}
TYPES = BUILTIN_TYPES

# Signs, longest first. Brackets come in pairs; `#{` is closed by `}`.
OPERATORS = ("++", "=>", "==", "!=", "<=", ">=", "&&", "||", "-", "+", "*", "/", "%", "<", ">", "!", "=", "?")
BRACKETS = {"(": ")", "{": "}", "[": "]", "#{": "}"}
SEPARATORS = (",", ":", ";")

IDENTIFIER = r"[A-Za-z_][A-Za-z0-9_]*"
PATTERNS = {
    "blank": r"[ \t\r\n\f]+",
    "word": rf"{IDENTIFIER}(?:\.{IDENTIFIER})*",
    "input": rf"\$\.{IDENTIFIER}(?:\.{IDENTIFIER})*",
    "string": r'"[^"\\]*(?:\\[\s\S][^"\\]*)*"',
    "float": r"[0-9]+\.[0-9]+(?:[eE][+-]?[0-9]+)?",
    "integer": r"[0-9]+",
    "doc": r"/\*\*(?!/)[\s\S]*?\*/",
    "comment": r"//[^\n]*|/\*[\s\S]*?\*/",
    "sign": r"\+\+|=>|==|!=|<=|>=|&&|\|\||\#\{|/(?!\*)|[-+*%<>!=?(){}\[\],:;]",
}
# After `script` or `script python`, `{` opens raw Python that ends with the matching brace outside Python strings and comments.


class Token(msgspec.Struct, eq=False, gc=False):
    """A token. `kind` is `name`, `dotted`, `input`, `string`, `float`, `integer`, `code`, `end`, or the sign itself.

    `value` is the decoded text of a string or script, `doc` the doc comment before the token, `broken` whether it begins a line.
    The parser sets `role` where it reads a word as a keyword. `reported`: the lexer has reported an error here.
    """

    kind: str
    text: str
    start: int
    end: int
    line: int
    line_start: int
    broken: bool
    value: str = ""
    doc: str | None = None
    role: TokenRole | None = None
    reported: bool = False
    code_line: int = 0
    _span: Span | None = None

    @property
    def column(self) -> int:
        return self.start - self.line_start + 1

    @property
    def span(self) -> Span:
        """Its place; made on first use, as most tokens never need it."""
        span = self._span
        if span is None:
            line, column = self.line, self.start - self.line_start + 1
            span = self._span = tuple.__new__(Span, (line, column, line, column + self.end - self.start))
        return span

    @span.setter
    def span(self, span: Span) -> None:
        self._span = span


WORDS = frozenset(["name", "dotted"])
OPENERS = frozenset(BRACKETS)
CLOSERS = frozenset(BRACKETS.values())
LITERALS = frozenset(["string", "float", "integer"])
OPERAND_ENDS = LITERALS | WORDS | CLOSERS | {"input"}
