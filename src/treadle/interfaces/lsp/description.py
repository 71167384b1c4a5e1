"""Names in words: signatures, types and doc comments, as hovers, completions, signature help and inlay hints show them."""

from __future__ import annotations

from lsprotocol import types

from treadle.interfaces.lsp.context import CursorContext
from treadle.interfaces.lsp.document import Document
from treadle.interfaces.lsp.index import DECLARATIONS, ProgramIndex
from treadle.lang import nodes
from treadle.lang.builtins import FUNCTIONS
from treadle.lang.names import Declared, Definition, Kind
from treadle.lang.types import UNKNOWN, Type, words

_DOCUMENTED = DECLARATIONS | {Kind.STEP, Kind.ALIAS}
TYPES = {
    "String": "Text.",
    "Long": "A whole number.",
    "Int": "A whole number.",
    "Double": "A number with a fraction.",
    "Boolean": "`true` or `false`.",
    "Json": "Any value.",
}


def param_text(param: nodes.Param, declared: Declared) -> str:
    """Return a parameter, return or field as it was written."""
    source = declared.opening.source
    default = "" if param.default is None else f" = {source.part(param.default.span)}"
    return f"{param.name.text}: {source.part(param.type.span)}{default}"


def params_text(params: tuple[nodes.Param, ...], declared: Declared) -> str:
    return f"({', '.join(param_text(param, declared) for param in params)})"


def signature(declared: Declared) -> str:
    """Return the head of a facet or schema, under its qualified name."""
    node = declared.node
    if isinstance(node, nodes.Schema):
        fields = ", ".join(param_text(field, declared) for field in node.fields)
        return f"schema {declared.qualified_name} {{ {fields} }}"
    returns = f" => {params_text(node.returns, declared)}" if node.returns else ""
    return f"{node.kind} {declared.qualified_name}{params_text(node.params, declared)}{returns}"


def result(declared: Declared) -> str:
    """Return the type of a step that calls a facet or schema: its returns, or the schema."""
    node = declared.node
    if isinstance(node, nodes.Schema):
        return declared.qualified_name
    return params_text(node.returns, declared) if node.returns else ""


def type_text(type_: Type) -> str:
    """Return a type in AFL; empty if it is not known."""
    return "" if type_ == UNKNOWN else words(type_)


def heading(symbol: Definition) -> str:
    """Return a name with its type, in the form of AFL."""
    if symbol.kind in DECLARATIONS and symbol.declared is not None:
        return signature(symbol.declared)
    if isinstance(symbol.node, nodes.Param) and symbol.owner is not None:
        return f"({symbol.kind}) {param_text(symbol.node, symbol.owner)}"
    if symbol.kind in (Kind.STEP, Kind.ALIAS) and symbol.declared is not None:
        return f"({symbol.kind}) {symbol.name.text} = {signature(symbol.declared)}"
    if symbol.kind is Kind.FUNCTION:
        function = FUNCTIONS[symbol.name.text]
        return f"({symbol.kind}) {function.form} => {function.result}"
    type_ = type_text(symbol.type)
    return f"({symbol.kind}) {symbol.name.text}" + (f": {type_}" if type_ and symbol.kind is not Kind.TYPE else "")


def documentation(symbol: Definition) -> str:
    """Return the doc comment as Markdown: the description, then parameters and returns."""
    if symbol.kind is Kind.TYPE:
        return TYPES.get(symbol.name.text, "")
    if symbol.kind is Kind.FUNCTION:
        return FUNCTIONS[symbol.name.text].doc
    doc = _doc(symbol)
    if doc is None:
        return ""
    lines = [doc.description] if doc.description else []
    lines += [f"- `{name}`: {text}" for name, text in doc.params]
    lines += [f"- returns `{name}`: {text}" for name, text in doc.returns]
    return "\n\n".join([lines[0], "\n".join(lines[1:])] if len(lines) > 1 else lines)


def _doc(symbol: Definition) -> nodes.DocComment | None:
    """Return the doc comment of a facet or schema, also of a step that calls it; of a parameter or return its line there."""
    if symbol.owner is None:
        return symbol.declared.node.doc if symbol.declared is not None and symbol.kind in _DOCUMENTED else None
    doc = symbol.owner.node.doc
    lines = () if doc is None else doc.returns if symbol.kind is Kind.RETURN else doc.params
    texts = [text for name, text in lines if name == symbol.name]
    return nodes.DocComment("\n".join(texts)) if texts else None


def hover_text(symbol: Definition, index: ProgramIndex) -> str:
    """Return the text of a hover."""
    parts = [f"```afl\n{heading(symbol)}\n```", documentation(symbol)]
    if symbol.kind is Kind.NAMESPACE:
        names = sorted(
            member.node.name.text for member in index.symbols.taken.values() if member.opening.namespace == symbol.name.text
        )
        parts.append(", ".join(f"`{name}`" for name in names))
    elif symbol.owner is not None:
        parts.append(f"of `{symbol.owner.qualified_name}`")
    return "\n\n".join(part for part in parts if part)


# --- signature help and inlay hints ----------------------------------------------------------------------------------


def signature_help(index: ProgramIndex, path: str, context: CursorContext) -> types.SignatureHelp | None:
    """Return the signature of the call around the cursor, with the parameter that is being written."""
    call = context.call
    if context.inert or call is None:
        return None
    declared = index.resolve_callee(call.name, index.opening(path, context.namespace))
    if declared is None:
        return None
    params = _params(declared, is_yield=call.kind == "yield")
    labels = [param_text(param, declared) for param in params]
    name = declared.qualified_name
    head = f"yield {name}" if call.kind == "yield" else name
    returned = result(declared)
    returns = f" => {returned}" if returned and call.kind != "yield" and isinstance(declared.node, nodes.Facet) else ""
    docs = documentation(index.symbols.definition(declared))
    return types.SignatureHelp(
        [
            types.SignatureInformation(
                f"{head}({', '.join(labels)}){returns}",
                types.MarkupContent(types.MarkupKind.Markdown, docs) if docs else None,
                [types.ParameterInformation(label) for label in labels],
            )
        ],
        0,
        _active([param.name.text for param in params], call.args, context),
    )


def _params(declared: Declared, *, is_yield: bool) -> tuple[nodes.Param, ...]:
    node = declared.node
    return node.returns if is_yield and isinstance(node, nodes.Facet) else node.params


def _active(names: list[str], given: list[str], context: CursorContext) -> int | None:
    """Return the parameter whose value is being written, or whose name begins; else the first that is missing."""
    if not context.names_argument and given and given[-1] in names:
        return names.index(given[-1])
    missing = [name for name in names if name not in given]
    begun = [name for name in missing if context.word and name.startswith(context.word)]
    return names.index((begun or missing)[0]) if missing else None


def inlay_hints(index: ProgramIndex, path: str, document: Document, start: int, end: int) -> list[types.InlayHint]:
    """Return the types of steps, values and loop variables whose declarations lie in a part of the text."""
    hints = []
    for occurrence in index.occurrences(path):
        symbol = occurrence.symbol
        if not occurrence.is_declaration or not start <= occurrence.start <= end:
            continue
        if symbol.kind is Kind.STEP and symbol.declared is not None:
            label = result(symbol.declared)
        elif symbol.kind in (Kind.LOOP, Kind.VALUE):
            label = type_text(symbol.type)
        else:
            continue
        if label:
            tip = types.MarkupContent(types.MarkupKind.Markdown, hover_text(symbol, index))
            hints.append(types.InlayHint(document.position(occurrence.end), f": {label}", types.InlayHintKind.Type, tooltip=tip))
    return hints
