"""Document symbols, workspace symbols and folding ranges."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from lsprotocol import types

from treadle.interfaces.lsp.document import Document
from treadle.interfaces.lsp.scan import scan
from treadle.lang import tree
from treadle.lang.tree import Name, Span

_KINDS = {
    tree.FacetKind.FACET: types.SymbolKind.Class,
    tree.FacetKind.EVENT: types.SymbolKind.Event,
    tree.FacetKind.WORKFLOW: types.SymbolKind.Function,
}


def document_symbols(file: tree.File, document: Document) -> list[types.DocumentSymbol]:
    """Return the declarations of a file, each with its parts; a file-scoped namespace holds what follows it."""
    found: list[types.DocumentSymbol] = []
    scoped: types.DocumentSymbol | None = None
    for item in file.items:
        symbol = _item(item, document)
        if symbol is None:
            continue
        if scoped is not None:
            scoped.children = [*(scoped.children or []), symbol]
            scoped.range = types.Range(scoped.range.start, symbol.range.end)
        else:
            found.append(symbol)
            if isinstance(item, tree.Namespace) and item.file_scoped:
                scoped = symbol
    return found


def _item(item: tree.Namespace | tree.Item, document: Document) -> types.DocumentSymbol | None:
    match item:
        case tree.Namespace(name):
            children = [_item(each, document) for each in item.items]
            return _symbol(name, item.span, types.SymbolKind.Namespace, "namespace", document, children)
        case tree.Facet(kind, name):
            children = [_symbol(each.name, _whole(each), types.SymbolKind.Field, "", document) for each in item.params]
            children += [_step(each, document) for block in item.blocks for each in _steps(block)]
            return _symbol(name, item.span, _KINDS[kind], str(kind), document, children)
        case tree.Schema(name):
            fields = [_symbol(each.name, _whole(each), types.SymbolKind.Field, "", document) for each in item.fields]
            return _symbol(name, item.span, types.SymbolKind.Struct, "schema", document, fields)
        case tree.Implicit(name):
            return _symbol(name, item.span, types.SymbolKind.Constant, "implicit", document)
        case _:
            return None


def _whole(param: tree.Param) -> Span:
    return param.name.span.to((param.default or param.type).span)


def _step(step: tree.Step, document: Document) -> types.DocumentSymbol:
    inner = [_step(each, document) for each in _steps(step.body)] + [_step(each, document) for each in _steps(step.catch)]
    return _symbol(step.name, step.span, types.SymbolKind.Variable, step.call.target.text, document, inner)


def _steps(block: tree.Block | tree.TooDeep | None) -> Iterator[tree.Step]:
    if isinstance(block, tree.Block):
        for case in block.cases or ():
            yield from _steps(case.block)
        yield from (each for each in block.statements if isinstance(each, tree.Step))


def _symbol(
    name: Name,
    span: Span,
    kind: types.SymbolKind,
    detail: str,
    document: Document,
    children: list[types.DocumentSymbol | None] | list[types.DocumentSymbol] | None = None,
) -> types.DocumentSymbol:
    inner = [each for each in children or () if each is not None]
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
    found: list[types.FoldingRange] = []
    opened: list[int] = []
    lines: list[tuple[int, str]] = []
    for token in scan(document.text):
        first = document.position(token.start).line
        last = document.position(token.end).line
        if token.kind in ("comment", "doc"):
            if last > first:
                found.append(types.FoldingRange(first, last, kind=types.FoldingRangeKind.Comment))
            elif token.text.startswith("//"):
                lines.append((first, "comment"))
        elif token.kind == "code" and last > first:
            found.append(types.FoldingRange(first, last - 1))
        elif token.text in ("{", "(", "[", "#{") and token.kind == "sign":
            opened.append(first)
        elif token.text in ("}", ")", "]") and token.kind == "sign" and opened:
            start = opened.pop()
            if last - 1 > start:
                found.append(types.FoldingRange(start, last - 1))
        elif token.text in ("use", "uses") and token.first_of_line:
            lines.append((first, "imports"))
    for kind, group in groupby(enumerate(lines), key=lambda each: (each[1][1], each[1][0] - each[0])):
        numbers = [line for _, (line, _) in group]
        if len(numbers) > 1:
            found.append(types.FoldingRange(numbers[0], numbers[-1], kind=kind[0]))
    return found
