"""Semantic tokens: the sort of each word, by its meaning where that is known."""

from __future__ import annotations

import re

from lsprotocol import types

from treadle.interfaces.lsp.document import Document
from treadle.interfaces.lsp.index import Index, Occurrence
from treadle.interfaces.lsp.scan import Class, Token, scan
from treadle.lang.definitions import Kind

_TYPES = types.SemanticTokenTypes
_NAMES = {
    Kind.NAMESPACE: _TYPES.Namespace,
    Kind.FACET: _TYPES.Class,
    Kind.EVENT: _TYPES.Event,
    Kind.WORKFLOW: _TYPES.Function,
    Kind.SCHEMA: _TYPES.Struct,
    Kind.ARGUMENT: _TYPES.Parameter,
    Kind.SCRIPT: _TYPES.Property,
    Kind.ERROR: _TYPES.Property,
    Kind.PARAMETER: _TYPES.Parameter,
    Kind.RETURN: _TYPES.Property,
    Kind.FIELD: _TYPES.Property,
    Kind.STEP: _TYPES.Variable,
    Kind.VALUE: _TYPES.Variable,
    Kind.LOOP: _TYPES.Variable,
    Kind.ALIAS: _TYPES.Variable,
    Kind.TYPE: _TYPES.Type,
    Kind.MIXIN: _TYPES.Class,
    Kind.FUNCTION: _TYPES.Function,
}
_TOKENS = {
    Class.COMMENT: _TYPES.Comment,
    Class.STRING: _TYPES.String,
    Class.NUMBER: _TYPES.Number,
    Class.KEYWORD: _TYPES.Keyword,
    Class.CONSTANT: _TYPES.Keyword,
    Class.OPERATOR: _TYPES.Operator,
}
LEGEND = types.SemanticTokensLegend(
    sorted({str(each.value) for each in (*_NAMES.values(), *_TOKENS.values())}),
    [types.SemanticTokenModifiers.Declaration.value, types.SemanticTokenModifiers.Documentation.value],
)
_LINE = re.compile(r"[^\r\n]+")
_NUMBERS = {name: number for number, name in enumerate(LEGEND.token_types)}


def semantic_tokens(index: Index, path: str, document: Document) -> list[int]:
    """Return the tokens of a file in the protocol's encoding: differences of lines and columns, no token over two lines."""
    found: list[tuple[int, int, str, int]] = []
    names = {(each.start, each.end): each for each in index.occurrences(path)}
    covered = sorted(names)
    place = 0
    for token in scan(document.text):
        while place < len(covered) and covered[place][0] < token.start:
            place += 1
        here: list[Occurrence] = []
        while place < len(covered) and covered[place][1] <= token.end:
            here.append(names[covered[place]])
            place += 1
        if token.kind == "code" or (token.kind == "string" and here) or here:
            found += [_name(each) for each in here]
        elif (kind := _kind(token)) is not None:
            found.append((token.start, token.end, kind, 2 if token.kind == "doc" else 0))
    return _encode(found, document)


def _name(each: Occurrence) -> tuple[int, int, str, int]:
    return each.start, each.end, _NAMES[each.symbol.kind].value, int(each.is_declaration)


def _kind(token: Token) -> str | None:
    found = _TOKENS.get(token.class_)
    return None if found is None else str(found.value)


def _encode(found: list[tuple[int, int, str, int]], document: Document) -> list[int]:
    encoded: list[int] = []
    line = column = 0
    for start, end, kind, modifiers in sorted(found):
        for first, last in _lines(document, start, end):
            begin, stop = document.position(first), document.position(last)
            new = begin.line - line
            encoded += [new, begin.character - (0 if new else column), stop.character - begin.character, _NUMBERS[kind], modifiers]
            line, column = begin.line, begin.character
    return encoded


def _lines(document: Document, start: int, end: int) -> list[tuple[int, int]]:
    """Split a token into the parts on each line, without the line ends."""
    return [match.span() for match in _LINE.finditer(document.text, start, end)]
