"""Encodes checked sources as a program: names resolved, ids derived from the path in the program.

Ids: a facet or schema has its qualified name; below it `block-0`, `catch`, `when-case-0`, step names, `yield-0`, `sys-0`,
`call`, `with-0`, `script`, `prompt` and `pre-script` are joined with `/`. So an id changes only when its own path does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, assert_never

from msgspec.structs import replace

from treadle.lang import nodes
from treadle.lang.codec import Encoder, JsonDict, location_json
from treadle.lang.expressions import COMPARISON, LEVELS
from treadle.lang.literals import encode
from treadle.lang.names import Opening
from treadle.lang.scope import Context

_RANKS = {nodes.FacetKind.FACET: 0, nodes.FacetKind.EVENT: 1, nodes.FacetKind.WORKFLOW: 2}
_UNARY = 7
_POSTFIX = 8


def emit(context: Context, digest: Callable[[JsonDict], str], *, locations: bool) -> tuple[JsonDict, str]:
    """Return the program, and the digest of the program without locations; the sources must have been checked without errors."""
    seen: Counter[str] = Counter()
    namespaces: list[JsonDict] = []
    top: list[tuple[int, JsonDict]] = []
    encoders = [_Encoder(context, opening, seen) for opening in context.symbols.openings]
    for encoder in encoders:
        items = [item for item in encoder.opening.items if not isinstance(item, nodes.Use)]
        items.sort(key=_rank)
        if encoder.opening.node is None:
            top += [(_rank(item), encoder.declaration(item)) for item in items]
        else:
            namespaces.append(encoder.declaration(replace(encoder.opening.node, items=tuple(items), uses=encoder.opening.uses)))
    top.sort(key=lambda ranked: ranked[0])
    declarations = [*namespaces, *(json for _, json in top)]
    program: JsonDict = {"type": "Program", "id": "program"} | ({"declarations": declarations} if declarations else {})
    digested = digest(program)
    if locations:
        for encoder in encoders:
            encoder.locate()
    return program, digested


def _rank(item: nodes.Facet | nodes.Implicit | nodes.Schema) -> int:
    return _RANKS[item.kind] if isinstance(item, nodes.Facet) else 3 if isinstance(item, nodes.Implicit) else 4


class _Encoder(Encoder):
    """Encodes the checked nodes of one opening of a namespace."""

    def __init__(self, context: Context, opening: Opening, seen: Counter[str]) -> None:
        super().__init__()
        self.opening = opening
        self._symbols, self._bindings, self._seen = context.symbols, context.bindings, seen

    def place(self, node: Any) -> JsonDict:
        return location_json(node.span, self.opening.source.name, node.code_line if isinstance(node, nodes.Script) else None)

    def path(self, name: str, *, unique: bool = False) -> str:
        """Return the path, numbered from its second use on if it must be unique: implicits and openings may repeat."""
        path = name if name.startswith("namespace:") else self.opening.qualify(name)
        if unique:
            self._seen[path] += 1
            return path if self._seen[path] == 1 else f"{path}#{self._seen[path]}"
        return path

    def id(self, node: Any, path: str) -> str:
        return path

    def target(self, node: nodes.Call) -> str:
        return nodes.VALUE if node.target.text == nodes.WRITTEN_VALUE else node.target.text

    def resolved(self, node: nodes.Call | nodes.Mixin) -> str | None:
        return self._bindings.callees.get(id(node))

    def into(self, node: nodes.Yield | nodes.Mixin) -> str | None:
        return self._bindings.into.get(id(node))

    def depends(self, node: nodes.Statement) -> tuple[str, ...]:
        return self._bindings.depends.get(id(node), ())

    def text(self, node: nodes.Sys) -> str | None:
        return None if node.condition is None else print_expr(node.condition)

    def param(self, node: nodes.Param) -> nodes.Param:
        type_, default = self._symbols.type_of(node.type, self.opening), node.default
        if isinstance(type_, nodes.OptionalType):
            default = default or nodes.Literal(None)
        return nodes.Param(node.name, type_, default, nodes.named_type(type_).name in self._symbols.facets.exact)

    def reference(self, node: nodes.InputRef | nodes.Ref | nodes.StepRef | nodes.LoopRef) -> JsonDict:
        """Encode a reference, with `?` after the fields that the value need not have."""
        path = list(node.path)
        for number in self._bindings.optional.get(id(node), ()):
            path[number] += "?"
        if isinstance(node, nodes.InputRef):
            return {"type": "InputRef", "path": path}
        if id(node) in self._bindings.values:
            path.insert(1, "value")
        return {"type": "LoopRef" if id(node) in self._bindings.loops else "StepRef", "path": path}

    def optional(self, node: nodes.Index) -> bool:
        return id(node) in self._bindings.optional


# --- the text of assertions ------------------------------------------------------------------------------------------


def print_expr(expr: nodes.Expr, level: int = 0) -> str:
    """Print an expression with the fewest parentheses that keep its meaning; `level` is the binding power of its surroundings."""
    match expr:
        case nodes.Literal():
            return _literal(expr)
        case nodes.InputRef():
            return "$." + ".".join(expr.path)
        case nodes.Ref() | nodes.StepRef() | nodes.LoopRef():
            return ".".join(expr.path)
        case nodes.Concat():
            text = " ++ ".join([print_expr(operand, 5) for operand in expr.operands])
            return _enclosed(text, 4, level)
        case nodes.Binary():
            own = LEVELS.get(expr.operator, COMPARISON)
            left = print_expr(expr.left, own if own != COMPARISON else own + 1)
            return _enclosed(f"{left} {expr.operator} {print_expr(expr.right, own + 1)}", own, level)
        case nodes.Chain():
            own = LEVELS[expr.operators[0]]
            parts = [print_expr(expr.operands[0], own)]
            parts += [f"{sign} {print_expr(each, own + 1)}" for sign, each in zip(expr.operators, expr.operands[1:], strict=True)]
            return _enclosed(" ".join(parts), own, level)
        case nodes.Unary():
            return _enclosed(expr.operator + print_expr(expr.operand, _UNARY), _UNARY, level)
        case nodes.ArrayLiteral():
            return "[" + ", ".join([print_expr(element) for element in expr.elements]) + "]"
        case nodes.MapLiteral():
            return "#{" + ", ".join([f"{encode(entry.name)}: {print_expr(entry.value)}" for entry in expr.entries]) + "}"
        case nodes.Index():
            return f"{print_expr(expr.target, _POSTFIX)}[{print_expr(expr.index)}]"
        case nodes.Function():
            return f"{expr.name}({', '.join([print_expr(each) for each in expr.args])})"
        case nodes.TooDeep():
            return "null"
    assert_never(expr)


def _enclosed(text: str, own: int, level: int) -> str:
    return f"({text})" if own < level else text


def _literal(expr: nodes.Literal) -> str:
    match expr.value:
        case None:
            return "null"
        case bool():
            return "true" if expr.value else "false"
        case str():
            return encode(expr.value)
        case int():
            return str(expr.value)
        case float():
            text = repr(expr.value)
            if "e" not in text:
                return text
            mantissa, exponent = text.split("e")
            return f"{mantissa if '.' in mantissa else mantissa + '.0'}e{exponent}"
    assert_never(expr.value)
