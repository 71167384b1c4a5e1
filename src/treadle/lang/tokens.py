"""The tokens of AFL: one description as data, for the lexer, the formatter, highlighters and editor grammars.

`PATTERNS` are regular expressions in the common subset of Python, ECMAScript and TextMate (Oniguruma), in the order in which
they are tried. `KEYWORDS` are contextual: each is a keyword only where the grammar has a place for it, and a plain name
everywhere else. `SIGNS` are all operators and brackets, longest first.
"""

from __future__ import annotations

from enum import StrEnum

from treadle.lang.program import BUILTIN_TYPES
from treadle.lang.tree import Span


class Role(StrEnum):
    """The part that a word plays; highlighters map it to a colour."""

    DECLARATION = "declaration"
    CONTROL = "control"
    MODIFIER = "modifier"
    DIRECTIVE = "directive"
    OPERATOR = "operator"
    CONSTANT = "constant"
    STATEMENT = "statement"


KEYWORDS = {
    "namespace": Role.DECLARATION,
    "use": Role.DECLARATION,
    "uses": Role.DECLARATION,
    "facet": Role.DECLARATION,
    "event": Role.DECLARATION,
    "workflow": Role.DECLARATION,
    "implicit": Role.DECLARATION,
    "schema": Role.DECLARATION,
    "with": Role.MODIFIER,
    "as": Role.MODIFIER,
    "andThen": Role.CONTROL,
    "yield": Role.CONTROL,
    "foreach": Role.CONTROL,
    "in": Role.OPERATOR,
    "prompt": Role.CONTROL,
    "system": Role.DIRECTIVE,
    "template": Role.DIRECTIVE,
    "model": Role.DIRECTIVE,
    "script": Role.CONTROL,
    "true": Role.CONSTANT,
    "false": Role.CONSTANT,
    "null": Role.CONSTANT,
    "when": Role.CONTROL,
    "case": Role.CONTROL,
    "catch": Role.CONTROL,
    "not": Role.OPERATOR,
    "contains": Role.OPERATOR,
    "startsWith": Role.OPERATOR,
    "endsWith": Role.OPERATOR,
    "sys.log": Role.STATEMENT,
    "sys.assert": Role.STATEMENT,
}
TYPES = BUILTIN_TYPES

# Signs, longest first. Brackets come in pairs; `#{` is closed by `}`.
OPERATORS = ("++", "=>", "==", "!=", "<=", ">=", "&&", "||", "-", "+", "*", "/", "%", "<", ">", "!", "=")
BRACKETS = {"(": ")", "{": "}", "[": "]", "#{": "}"}
SEPARATORS = (",", ":", ";")

IDENTIFIER = r"[A-Za-z_][A-Za-z0-9_]*"
PATTERNS = {
    "blank": r"[ \t\r\n\f]+",
    "doc": r"/\*\*(?!/)[\s\S]*?\*/",
    "comment": r"//[^\n]*|/\*[\s\S]*?\*/",
    "word": rf"{IDENTIFIER}(?:\.{IDENTIFIER})*",
    "input": rf"\$\.{IDENTIFIER}(?:\.{IDENTIFIER})*",
    "string": r'"[^"\\]*(?:\\[\s\S][^"\\]*)*"',
    "float": r"[0-9]+\.[0-9]+(?:[eE][+-]?[0-9]+)?",
    "integer": r"[0-9]+",
    "sign": r"\+\+|=>|==|!=|<=|>=|&&|\|\||\#\{|[-+*/%<>!=(){}\[\],:;]",
}
# After `script` or `script python`, `{` opens raw Python that ends with the matching brace outside Python strings and comments.


class Token:
    """A token for the parser; `value` is decoded for strings and scripts, `doc` is the doc comment before it."""

    __slots__ = ("code_line", "column", "doc", "end_column", "end_line", "end_pos", "line", "start_pos", "type", "value")

    def __init__(
        self, type_: str, value: str, start: int, end: int, line: int, column: int, end_line: int, end_column: int
    ) -> None:
        self.type = type_
        self.value = value
        self.start_pos = start
        self.end_pos = end
        self.line = line
        self.column = column
        self.end_line = end_line
        self.end_column = end_column
        self.doc: str | None = None
        self.code_line = line

    @property
    def span(self) -> Span:
        return Span(self.line, self.column, self.end_line, self.end_column)


KINDS = {
    "namespace": "NAMESPACE",
    "use": "USE",
    "uses": "USE",
    "facet": "FACET",
    "event": "EVENT",
    "workflow": "WORKFLOW",
    "implicit": "IMPLICIT",
    "schema": "SCHEMA",
    "with": "WITH",
    "as": "_AS",
    "andThen": "ANDTHEN",
    "yield": "YIELD",
    "foreach": "FOREACH",
    "in": "IN",
    "prompt": "PROMPT",
    "system": "SYSTEM",
    "template": "TEMPLATE",
    "model": "MODEL",
    "script": "SCRIPT",
    "true": "TRUE",
    "false": "FALSE",
    "null": "NULL",
    "when": "WHEN",
    "case": "CASE",
    "catch": "CATCH",
    "not": "NOT",
    "contains": "CONTAINS",
    "startsWith": "STARTS_WITH",
    "endsWith": "ENDS_WITH",
    "sys.log": "SYS_LOG",
    "sys.assert": "SYS_ASSERT",
}

SIGNS = {
    "(": "_LPAR",
    ")": "RPAR",
    "{": "LBRACE",
    "}": "RBRACE",
    "[": "LSQB",
    "]": "RSQB",
    "#{": "MAP_OPEN",
    ",": "_COMMA",
    ":": "_COLON",
    ";": "_SEMI",
    "=": "_EQ",
    "=>": "_ARROW",
    "++": "_CONCAT",
    "+": "PLUS",
    "-": "MINUS",
    "*": "TIMES",
    "/": "DIVIDE",
    "%": "MODULO",
    "==": "EQUALS",
    "!=": "DIFFERS",
    "<": "LESS",
    ">": "GREATER",
    "<=": "AT_MOST",
    ">=": "AT_LEAST",
    "&&": "AND",
    "||": "OR",
    "!": "BANG",
}

_COMPARISONS = frozenset(["EQUALS", "DIFFERS", "LESS", "GREATER", "AT_MOST", "AT_LEAST", "IN", "NOT", "CONTAINS"])
BINARY_OPERATORS = _COMPARISONS | frozenset(
    ["STARTS_WITH", "ENDS_WITH", "AND", "OR", "_CONCAT", "PLUS", "MINUS", "TIMES", "DIVIDE", "MODULO"]
)
LITERALS = frozenset(["STRING", "FLOAT", "INTEGER", "TRUE", "FALSE", "NULL"])
REFERENCES = frozenset(["NAME", "DOTTED", "INPUT"])

_PHRASES = {
    "NAME": "a name",
    "DOTTED": "a qualified name",
    "INPUT": "a reference such as `$.name`",
    "STRING": "a string in double quotes",
    "CODE": "`{` and Python code",
    "FLOAT": "a number",
    "INTEGER": "a number",
    "USE": "`use`",
    "_FILE_SCOPE": "the end of the line",
    "_FIELD_BREAK": "the end of the line",
    "$END": "the end of the file",
}
_DECLARATIONS = frozenset(["FACET", "EVENT", "WORKFLOW", "IMPLICIT", "SCHEMA", "USE"])
_GROUPS = (
    (BINARY_OPERATORS, "an operator"),
    (LITERALS | REFERENCES | {"LSQB", "MAP_OPEN", "_LPAR", "PLUS", "MINUS", "BANG"}, "a value"),
    (_DECLARATIONS | {"NAMESPACE"}, "a declaration"),
    (_DECLARATIONS, "a declaration"),
)


def phrase(type_: str) -> str:
    """Return the phrase for one kind of token."""
    known = _PHRASES.get(type_)
    if known is not None:
        return known
    for table in (SIGNS, KINDS):
        for text, name in table.items():
            if name == type_:
                return f"`{text}`"
    return "something else"


def phrases(types: set[str]) -> list[str]:
    """Return the phrases for kinds of tokens, with groups under their common name, sorted, without duplicates."""
    left = set(types)
    found: list[str] = []
    for group, words in _GROUPS:
        if group <= left:
            left -= group
            found.append(words)
    # A value can be followed by an index only where operators are possible too; listing it does not help.
    if "an operator" in found:
        left.discard("LSQB")
    return found + sorted({phrase(type_) for type_ in left})
