"""Encodes programs as JSON, in the form of `codec`: loaded ones, and checked sources.

Of a source, names are resolved, and ids derived from the path in the program.

Ids: a facet or schema has its qualified name; below it `block-0`, `catch`, `when-case-0`, step names, `yield-0`, `sys-0`,
`call`, `with-0`, `script`, `prompt` and `pre-script` are joined with `/`. So an id changes only when its own path does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, assert_never

from msgspec.structs import replace

from treadle.lang import nodes
from treadle.lang.codec import EXPRESSIONS, FACET_KINDS, LITERALS, JsonDict
from treadle.lang.expressions import COMPARISON, LEVELS
from treadle.lang.literals import encode
from treadle.lang.names import Opening
from treadle.lang.program import Program
from treadle.lang.scope import Bindings, CheckContext

_RANKS = {nodes.FacetKind.FACET: 0, nodes.FacetKind.EVENT: 1, nodes.FacetKind.WORKFLOW: 2}
_UNARY = 7
_POSTFIX = 8


def emit(context: CheckContext, digest: Callable[[JsonDict], str], *, locations: bool) -> tuple[JsonDict, str]:
    """Return the program, and the digest of the program without locations; the sources must have been checked without errors."""
    seen: Counter[str] = Counter()
    namespaces: list[JsonDict] = []
    top: list[tuple[int, JsonDict]] = []
    encoders = [_Encoder(context, opening, seen) for opening in context.symbols.openings]
    for opening, encoder in zip(context.symbols.openings, encoders, strict=True):
        items = [item for item in opening.items if not isinstance(item, nodes.Use)]
        items.sort(key=_rank)
        if opening.node is None:
            top += [(_rank(item), encoder.declaration(item)) for item in items]
        else:
            namespaces.append(encoder.declaration(replace(opening.node, items=tuple(items), uses=opening.uses)))
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


def encode_program(program: Program, *, locations: bool = True) -> JsonDict:
    """Return the JSON of a program; without locations it depends only on the meaning."""
    encoder = _Encoder()
    json = encoder.program(program)
    if locations:
        encoder.locate()
    return json


class _Encoder:
    """Encodes the nodes of a program, or those of one opening of a checked source.

    Places are collected, so that they can be added after the digest is made.
    """

    def __init__(
        self, context: CheckContext | None = None, opening: Opening | None = None, seen: Counter[str] | None = None
    ) -> None:
        self._opening = opening
        self._symbols = None if context is None else context.symbols
        self._bindings = Bindings() if context is None else context.bindings
        self._seen: Counter[str] = Counter() if seen is None else seen
        self._located: list[tuple[JsonDict, Any]] = []

    def locate(self) -> None:
        """Add the places of all nodes that have been encoded so far."""
        for json, node in self._located:
            if (place := self._place(node)) is not None:
                json["location"] = place

    # --- what the checks found, or the nodes of a program have

    def _path(self, name: str, *, unique: bool = False) -> str:
        """Return the path of a declaration; implicits and openings may repeat, so theirs is numbered from its second use on."""
        if self._opening is None:
            return ""
        path = name if name.startswith("namespace:") else self._opening.qualify(name)
        if unique:
            self._seen[path] += 1
            return path if self._seen[path] == 1 else f"{path}#{self._seen[path]}"
        return path

    def _place(self, node: Any) -> JsonDict | None:
        if self._opening is not None:
            code_line = node.code_line if isinstance(node, nodes.Script) else None
            return _location_json(node.span, self._opening.source.name, code_line)
        at: nodes.Location | None = node.location
        return None if at is None else _location_json(at, at.source, at.code_line)

    def _resolved(self, node: nodes.Call | nodes.Mixin) -> str | None:
        return self._bindings.callees.get(id(node), node.resolved)

    def _depends(self, node: nodes.Statement) -> list[str]:
        return list(self._bindings.depends.get(id(node), node.depends))

    def _param(self, node: nodes.Param) -> nodes.Param:
        if self._opening is None or self._symbols is None:
            return node
        type_, default = self._symbols.type_of(node.type, self._opening), node.default
        if isinstance(type_, nodes.OptionalType):
            default = default or nodes.Literal(None)
        return nodes.Param(node.name, type_, default, nodes.named_type(type_).name in self._symbols.facets.exact)

    def _reference(self, node: nodes.Reference) -> JsonDict:
        """Encode a reference, with `?` after the fields that the value need not have."""
        kind, path = type(node).__name__, list(node.path)
        for number in self._bindings.optional.get(id(node), ()):
            path[number] += "?"
        if isinstance(node, nodes.Ref):
            kind = "LoopRef" if id(node) in self._bindings.loops else "StepRef"
            if id(node) in self._bindings.values:
                path.insert(1, "value")
        return {"type": kind, "path": path}

    # --- declarations

    def _node(self, type_: str, node: Any, path: str, **parts: Any) -> JsonDict:
        json: JsonDict = {"type": type_, "id": node.id or path}
        for key, value in parts.items():
            if value or (value is not None and value != []):
                json[key] = value
        self._located.append((json, node))
        return json

    def program(self, program: Program) -> JsonDict:
        declarations = [self.declaration(node) for node in program.declarations]
        return self._node("Program", program, "", strict=program.strict or None, declarations=declarations)

    def declaration(self, node: nodes.Declaration) -> JsonDict:
        match node:
            case nodes.Namespace():
                items = [self.declaration(item) for item in node.items if not isinstance(item, nodes.Use)]
                path, name = self._path(f"namespace:{node.name}", unique=True), str(node.name)
                return self._node(
                    "Namespace", node, path, name=name, doc=_doc_json(node.doc), uses=list(node.uses), declarations=items
                )
            case nodes.Facet():
                return self._facet(node, self._path(str(node.name)))
            case nodes.Implicit():
                path = self._path(f"implicit:{node.name}", unique=True)
                return self._node("ImplicitDecl", node, path, name=str(node.name), call=self._call(node.call, path))
            case nodes.Schema():
                json = self._node("SchemaDecl", node, self._path(str(node.name)), name=str(node.name), doc=_doc_json(node.doc))
                json["fields"] = self._params(node.fields)
                return json
        assert_never(node)

    def _facet(self, node: nodes.Facet, path: str) -> JsonDict:
        mixins = self._mixins(node.mixins, path, "MixinSig")
        blocks = [self._block(block, f"{path}/block-{n}") for n, block in enumerate(node.blocks)]
        body: Any = blocks if len(blocks) > 1 else blocks[0] if blocks else None
        if node.prompt is not None:
            prompt, texts = f"{path}/prompt", {kind: getattr(node.prompt, kind) for kind in nodes.DIRECTIVES}
            body = self._node("PromptBlock", node.prompt, prompt, **texts)
        return self._node(
            FACET_KINDS[node.kind], node, path, name=str(node.name), doc=_doc_json(node.doc), params=self._params(node.params),
            returns=self._params(node.returns), mixins=mixins, pre_script=self._script(node.pre_script, f"{path}/pre-script"),
            body=body, catch=self._block_or_none(node.catch, f"{path}/catch"),
        )  # fmt: skip

    def _params(self, params: tuple[nodes.Param, ...]) -> list[JsonDict]:
        encoded = []
        for param in map(self._param, params):
            json: JsonDict = {"name": str(param.name), "type": _type_json(param.type)}
            if param.reference:
                json["reference"] = True
            if param.default is not None:
                json["default"] = self._expr(param.default)
            encoded.append(json)
        return encoded

    # --- blocks

    def _block(self, node: nodes.Block, path: str) -> JsonDict:
        foreach = None
        if node.foreach is not None:
            iterable = self._expr(node.foreach.iterable)
            foreach = {"type": "ForeachClause", "variable": str(node.foreach.variable), "iterable": iterable}
            foreach |= {key: str(name) for key in ("mode", "failed") if (name := getattr(node.foreach, key)) is not None}
        yields = [self._yield(statement, f"{path}/yield-{n}") for n, statement in enumerate(node.yields)]
        return self._node(
            "AndThenBlock", node, path, foreach=foreach, script=self._script(node.script, f"{path}/script"),
            when=[self._case(case, f"{path}/when-case-{n}") for n, case in enumerate(node.when)],
            steps=[self._step(step, f"{path}/{step.name}") for step in node.steps],
            sys=[self._sys(statement, f"{path}/sys-{n}") for n, statement in enumerate(node.sys)],
            **({"yield": yields[0]} if len(yields) == 1 else {"yields": yields}),
        )  # fmt: skip

    def _block_or_none(self, node: nodes.Block | None, path: str) -> JsonDict | None:
        return None if node is None else self._block(node, path)

    def _case(self, node: nodes.Case, path: str) -> JsonDict:
        condition = {} if node.condition is None else {"condition": self._expr(node.condition)}
        return {"type": "WhenCase", **condition, "block": self._block(node.block, path)}

    def _script(self, node: nodes.Script | None, path: str) -> JsonDict | None:
        return None if node is None else self._node("ScriptBlock", node, path, language=str(node.language), code=node.code)

    def _step(self, node: nodes.Step, path: str) -> JsonDict:
        return self._node(
            "StepStmt", node, path, name=str(node.name), call=self._call(node.call, path),
            body=self._block_or_none(node.body, f"{path}/block-0"), catch=self._block_or_none(node.catch, f"{path}/catch"),
            depends=self._depends(node), after=list(map(str, node.after)),
        )  # fmt: skip

    def _yield(self, node: nodes.Yield, path: str) -> JsonDict:
        call = self._call(node.call, path)
        return self._node(
            "YieldStmt", node, path, call=call, into=self._bindings.into.get(id(node), node.into), depends=self._depends(node)
        )

    def _sys(self, node: nodes.Sys, path: str) -> JsonDict:
        text = node.text if self._opening is None or node.condition is None else print_expr(node.condition)
        return self._node(
            "SysStmt", node, path, kind=str(node.kind), args=self._args(node.args), text=text,
            depends=self._depends(node), condition=None if node.condition is None else self._expr(node.condition),
            after=list(map(str, node.after)),
        )  # fmt: skip

    def _call(self, node: nodes.Call, owner: str) -> JsonDict:
        path = f"{owner}/call"
        target = nodes.VALUE if node.target == nodes.WRITTEN_VALUE else str(node.target)
        return self._node(
            "CallExpr", node, path, target=target, resolved=self._resolved(node), args=self._args(node.args),
            mixins=self._mixins(node.mixins, path, "MixinCall"),
        )  # fmt: skip

    def _mixins(self, mixins: tuple[nodes.Mixin, ...], path: str, type_: str) -> list[JsonDict]:
        return [
            self._node(
                type_, node, f"{path}/with-{n}", target=str(node.target), resolved=self._resolved(node),
                args=self._args(node.args), alias=node.alias and str(node.alias), into=self._bindings.into.get(id(node), node.into),
            )
            for n, node in enumerate(mixins)
        ]  # fmt: skip

    def _args(self, args: tuple[nodes.Arg, ...]) -> list[JsonDict]:
        return [{"name": str(arg.name), "value": self._expr(arg.value)} for arg in args]

    # --- expressions

    def _expr(self, expr: nodes.Expr) -> JsonDict:
        if isinstance(expr, nodes.Reference):
            return self._reference(expr)
        if isinstance(expr, nodes.Literal):
            kind = LITERALS[type(expr.value)]
            return {"type": kind} if kind == "Null" else {"type": kind, "value": expr.value}
        kind, names = EXPRESSIONS[type(expr)]
        json = {"type": kind, **{name: self._part(getattr(expr, name)) for name in names}}
        if isinstance(expr, nodes.Index) and (expr.optional or id(expr) in self._bindings.optional):
            json["optional"] = True
        return json

    def _part(self, part: Any) -> Any:
        """Return a part of an expression: an operator, an expression, a map's entry, or several of them."""
        if isinstance(part, tuple):
            return [self._part(inner) for inner in part]
        if isinstance(part, str):
            return str(part)
        return {"key": str(part.name), "value": self._expr(part.value)} if isinstance(part, nodes.Arg) else self._expr(part)


def _type_json(type_: nodes.Type) -> str | JsonDict:
    """Return a string, `{type: ArrayType, elementType}`, or the same with OptionalType."""
    if isinstance(type_, nodes.NamedType):
        return str(type_.name)
    kind = "ArrayType" if isinstance(type_, nodes.ListType) else "OptionalType"
    return {"type": kind, "elementType": _type_json(type_.element)}


def _doc_json(doc: nodes.DocComment | None) -> JsonDict | None:
    if doc is None:
        return None
    json: JsonDict = {"description": doc.description}
    for key, entries in (("params", doc.params), ("returns", doc.returns)):
        if entries:
            json[key] = [{"name": name, "description": text} for name, text in entries]
    return json


def _location_json(at: nodes.Location | nodes.Span, source: str | None, code_line: int | None) -> JsonDict:
    json: JsonDict = {"line": at.line, "column": at.column, "endLine": at.end_line, "endColumn": at.end_column}
    if source is not None:
        json["sourceId"] = source
    if code_line is not None:
        json["codeLine"] = code_line
    return json


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
            parts += [
                f"{sign} {print_expr(operand, own + 1)}" for sign, operand in zip(expr.operators, expr.operands[1:], strict=True)
            ]
            return _enclosed(" ".join(parts), own, level)
        case nodes.Unary():
            return _enclosed(expr.operator + print_expr(expr.operand, _UNARY), _UNARY, level)
        case nodes.ArrayLiteral():
            return "[" + ", ".join([print_expr(element) for element in expr.elements]) + "]"
        case nodes.MapLiteral():
            return "#{" + ", ".join([f"{encode(entry.name)}: {print_expr(entry.value)}" for entry in expr.entries]) + "}"
        case nodes.Index():
            return f"{print_expr(expr.target, _POSTFIX)}[{print_expr(expr.index)}]"
        case nodes.FunctionCall():
            return f"{expr.name}({', '.join([print_expr(arg) for arg in expr.args])})"
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
