"""Signature help, and inlay hints with the types that the text leaves out."""

from __future__ import annotations

from lsprotocol import types

from treadle.interfaces.lsp import description
from treadle.interfaces.lsp.context import Context
from treadle.interfaces.lsp.document import Document
from treadle.interfaces.lsp.index import Index
from treadle.lang import tree
from treadle.lang.definitions import Kind
from treadle.lang.names import Declared


def signature_help(index: Index, path: str, context: Context) -> types.SignatureHelp | None:
    """Return the signature of the call around the cursor, with the parameter that is being written."""
    call = context.call
    if context.inert or call is None:
        return None
    declared = index.resolve_callee(call.name, index.opening(path, context.namespace))
    if declared is None:
        return None
    params = _params(declared, is_yield=call.kind == "yield")
    labels = [description.param_text(each, declared) for each in params]
    name = declared.qualified_name
    head = f"yield {name}" if call.kind == "yield" else name
    result = description.result(declared)
    returns = f" => {result}" if result and call.kind != "yield" and isinstance(declared.node, tree.Facet) else ""
    symbol = index.declaration(declared)
    docs = description.documentation(symbol)
    return types.SignatureHelp(
        [
            types.SignatureInformation(
                f"{head}({', '.join(labels)}){returns}",
                types.MarkupContent(types.MarkupKind.Markdown, docs) if docs else None,
                [types.ParameterInformation(label) for label in labels],
            )
        ],
        0,
        _active([each.name.text for each in params], call.args, context),
    )


def _params(declared: Declared, *, is_yield: bool) -> tuple[tree.Param, ...]:
    node = declared.node
    if isinstance(node, tree.Schema):
        return node.fields
    return node.returns if is_yield else node.params


def _active(names: list[str], given: list[str], context: Context) -> int | None:
    """Return the parameter whose value is being written, or whose name begins; else the first that is missing."""
    if not context.names_argument and given and given[-1] in names:
        return names.index(given[-1])
    missing = [name for name in names if name not in given]
    begun = [name for name in missing if context.word and name.startswith(context.word)]
    return names.index((begun or missing)[0]) if missing else None


def inlay_hints(index: Index, path: str, document: Document, start: int, end: int) -> list[types.InlayHint]:
    """Return the types of steps, values and loop variables whose declarations lie in a part of the text."""
    found = []
    for each in index.occurrences(path):
        symbol = each.symbol
        if not each.is_declaration or not start <= each.start <= end:
            continue
        if symbol.kind is Kind.STEP and symbol.declared is not None:
            label = description.result(symbol.declared)
        elif symbol.kind in (Kind.LOOP, Kind.VALUE):
            label = description.type_text(symbol.type)
        else:
            continue
        if label:
            tip = types.MarkupContent(types.MarkupKind.Markdown, description.hover_text(symbol, index))
            place = document.position(each.end)
            found.append(types.InlayHint(place, f": {label}", types.InlayHintKind.Type, tooltip=tip))
    return found
