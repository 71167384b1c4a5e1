"""Document symbols, workspace symbols, folding ranges, and semantic tokens: the sort of each word, by its meaning if known."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator
from itertools import groupby

from lsprotocol import types

from treadle.interfaces.lsp.document import Document
from treadle.interfaces.lsp.index import ProgramIndex
from treadle.interfaces.lsp.scan import Class, scan
from treadle.lang import nodes
from treadle.lang.names import Kind
from treadle.lang.nodes import Name, Span

_KINDS = {
    nodes.FacetKind.FACET: types.SymbolKind.Class,
    nodes.FacetKind.EVENT: types.SymbolKind.Event,
    nodes.FacetKind.WORKFLOW: types.SymbolKind.Function,
}


def document_symbols(file: nodes.File, document: Document) -> list[types.DocumentSymbol]:
    """Return the declarations of a file, each with its parts; a file-scoped namespace holds the declarations after it."""
    symbols: list[types.DocumentSymbol] = []
    scoped: types.DocumentSymbol | None = None
    for item in file.items:
        symbol = _item(item, document)
        if symbol is None:
            continue
        if scoped is not None:
            scoped.children = [*(scoped.children or []), symbol]
            scoped.range = types.Range(scoped.range.start, symbol.range.end)
        else:
            symbols.append(symbol)
            if isinstance(item, nodes.Namespace) and item.file_scoped:
                scoped = symbol
    return symbols


def _item(item: nodes.Namespace | nodes.Item, document: Document) -> types.DocumentSymbol | None:
    match item:
        case nodes.Namespace(name):
            children = [_item(child, document) for child in item.items]
            return _symbol(name, item.span, types.SymbolKind.Namespace, "namespace", document, children)
        case nodes.Facet(name, kind):
            children = [_symbol(param.name, param.span, types.SymbolKind.Field, "", document) for param in item.params]
            children += [_step(step, document) for block in item.blocks for step in _steps(block)]
            return _symbol(name, item.span, _KINDS[kind], str(kind), document, children)
        case nodes.Schema(name):
            fields = [_symbol(field.name, field.span, types.SymbolKind.Field, "", document) for field in item.fields]
            return _symbol(name, item.span, types.SymbolKind.Struct, "schema", document, fields)
        case nodes.Implicit(name):
            return _symbol(name, item.span, types.SymbolKind.Constant, "implicit", document)
        case _:
            return None


def _step(step: nodes.Step, document: Document) -> types.DocumentSymbol:
    inner = [_step(nested, document) for nested in _steps(step.body)] + [_step(nested, document) for nested in _steps(step.catch)]
    return _symbol(step.name, step.span, types.SymbolKind.Variable, step.call.target.text, document, inner)


def _steps(block: nodes.Block | None) -> Iterator[nodes.Step]:
    if block is not None:
        for case in block.when:
            yield from _steps(case.block)
        yield from block.steps


def _symbol(
    name: Name,
    span: Span,
    kind: types.SymbolKind,
    detail: str,
    document: Document,
    children: list[types.DocumentSymbol | None] | list[types.DocumentSymbol] | None = None,
) -> types.DocumentSymbol:
    inner = [child for child in children or () if child is not None]
    whole, here = document.span_range(span), document.span_range(name.span)
    return types.DocumentSymbol(name.text, kind, whole, here, detail or None, children=inner)


def flat(symbols: list[types.DocumentSymbol], container: str = "") -> Iterator[tuple[str, types.DocumentSymbol]]:
    """Yield declarations with the namespace that they are in."""
    for symbol in symbols:
        if symbol.kind is types.SymbolKind.Namespace:
            yield from flat(list(symbol.children or ()), symbol.name)
        yield container, symbol


def folding(document: Document) -> list[types.FoldingRange]:
    """Return a range for each bracket pair, comment and block of `use` lines that takes several lines; for broken text too."""
    ranges: list[types.FoldingRange] = []
    opened: list[int] = []
    lines: list[tuple[int, str]] = []
    for token in scan(document.text):
        first = document.position(token.start).line
        last = document.position(token.end).line
        if token.kind in ("comment", "doc"):
            if last > first:
                ranges.append(types.FoldingRange(first, last, kind=types.FoldingRangeKind.Comment))
            elif token.text.startswith("//"):
                lines.append((first, "comment"))
        elif token.kind == "code" and last > first:
            ranges.append(types.FoldingRange(first, last - 1))
        elif token.text in ("{", "(", "[", "#{") and token.kind == "sign":
            opened.append(first)
        elif token.text in ("}", ")", "]") and token.kind == "sign" and opened:
            start = opened.pop()
            if last - 1 > start:
                ranges.append(types.FoldingRange(start, last - 1))
        elif token.text in ("use", "uses") and token.first_of_line:
            lines.append((first, "imports"))
    for kind, group in groupby(enumerate(lines), key=lambda numbered: (numbered[1][1], numbered[1][0] - numbered[0])):
        numbers = [line for _, (line, _) in group]
        if len(numbers) > 1:
            ranges.append(types.FoldingRange(numbers[0], numbers[-1], kind=kind[0]))
    return ranges


# --- semantic tokens -------------------------------------------------------------------------------------------------

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
    sorted({str(token_type.value) for token_type in (*_NAMES.values(), *_TOKENS.values())}),
    [types.SemanticTokenModifiers.Declaration.value, types.SemanticTokenModifiers.Documentation.value],
)
_LINE = re.compile(r"[^\r\n]+")
_NUMBERS = {name: number for number, name in enumerate(LEGEND.token_types)}


def semantic_tokens(index: ProgramIndex, path: str, document: Document) -> list[int]:
    """Return the tokens of a file in the protocol's encoding: differences of lines and columns, no token over two lines."""
    names = index.occurrences(path)
    tokens = [
        (occurrence.start, occurrence.end, _NAMES[occurrence.symbol.kind].value, int(occurrence.is_declaration))
        for occurrence in names
    ]
    starts = [occurrence.start for occurrence in names]
    for token in scan(document.text):
        place = bisect_left(starts, token.start)
        is_name = place < len(starts) and starts[place] < token.end
        if not is_name and token.class_ in _TOKENS:
            tokens.append((token.start, token.end, _TOKENS[token.class_].value, 2 if token.kind == "doc" else 0))
    return _encode(tokens, document)


def _encode(found: list[tuple[int, int, str, int]], document: Document) -> list[int]:
    encoded: list[int] = []
    line = column = 0
    for start, end, kind, modifiers in sorted(found):
        for line_part in _LINE.finditer(document.text, start, end):
            begin, stop = document.position(line_part.start()), document.position(line_part.end())
            new = begin.line - line
            encoded += [new, begin.character - (0 if new else column), stop.character - begin.character, _NUMBERS[kind], modifiers]
            line, column = begin.line, begin.character
    return encoded
