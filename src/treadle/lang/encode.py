"""Compiled records to JSON, in the form of the AFL reference: empty lists and absent parts are left out.

Beyond the reference's keys there are:
- `resolved` on CallExpr, MixinCall and MixinSig: the qualified name of the declaration that `target` (kept as written)
  means; absent for an external facet. Type strings hold the qualified name of a schema or facet.
- `reference: true` on a parameter whose type is a facet.
- `depends` on statements: the steps of the same block that must be complete first; `after` on steps and `sys` statements:
  the steps that they were written to follow.
- ForeachClause `mode`: `failFast` or `collectErrors`; `failed`: the return that collects the errors.
- `into` on YieldStmt and on a yield's MixinCall: the signature alias that is written to.
- AndThenBlock `when`: a list of WhenCase {condition (absent: default), block}; `sys`: a list of SysStmt {kind, args,
  condition, text}. StepStmt and declarations `catch`: an AndThenBlock. MixinSig `alias`.
- ChainExpr {operators, operands}: more than 32 operands joined by binary operators of one level, from the left.
- LoopRef {path}: a loop variable written without `$.`; StepRef with a path of one name: the step itself.
- FunctionExpr {name, args}: a function of an expression, `count(list)`, with its arguments by position.
- A StepStmt whose CallExpr has the target `sys.value` (not `resolved`) computes a value, `d = expr`; its argument `value` is the
  expression, and a reference `d.f` is the StepRef ["d", "value", "f"].
- The type {type: OptionalType, elementType}: `T?`. Such parameters, returns and fields have a `default`, Null if none is written;
  in the path of a reference, `name?` is an optional field of a schema, which reads as null if the value does not have it; the same
  is `optional: true` on IndexExpr.
- `codeLine` in the location of a ScriptBlock: the line of the source where `code` begins.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, assert_never, cast

from treadle.lang import program as p

Json = dict[str, Any]


def encode_program(program: p.Program, *, locations: bool = True) -> Json:
    """Return the JSON of a program; without locations it depends only on the meaning."""
    encoder = _Encoder()
    json = encoder.program(program)
    if locations:
        encoder.locate()
    return json


def encode_with_digest(program: p.Program, digest: Callable[[Json], str], *, locations: bool) -> tuple[Json, str]:
    """Return the JSON of a program and the digest of its JSON without locations, in one pass."""
    encoder = _Encoder()
    json = encoder.program(program)
    made = digest(json)
    if locations:
        encoder.locate()
    return json, made


class _Encoder:
    """Collects the locations of all nodes, so that they can be added after the digest is made."""

    def __init__(self) -> None:
        self._located: list[tuple[Json, p.Location]] = []

    def locate(self) -> None:
        for json, location in self._located:
            json["location"] = _location(location)

    def _node(self, type_: str, node: p.Node | p.Program, **parts: Any) -> Json:
        json: Json = {"type": type_, "id": node.id}
        for key, value in parts.items():
            if value or (value is not None and value != []):
                json[key] = value
        if node.location is not None:
            self._located.append((json, node.location))
        return json

    def program(self, node: p.Program) -> Json:
        return self._node("Program", node, declarations=[self._declaration(each) for each in node.declarations])

    def _declaration(self, node: p.Declaration) -> Json:
        match node:
            case p.Namespace():
                return self._node(
                    "Namespace", node, name=node.name, doc=_doc(node.doc), uses=list(node.uses),
                    declarations=[self._declaration(each) for each in node.declarations],
                )  # fmt: skip
            case p.Facet():
                return self._facet(node)
            case p.Implicit():
                return self._node("ImplicitDecl", node, name=node.name, call=self._call(node.call))
            case p.Schema():
                json = self._node("SchemaDecl", node, name=node.name, doc=_doc(node.doc))
                json["fields"] = _params(node.fields)
                return json
        assert_never(node)

    def _facet(self, node: p.Facet) -> Json:
        blocks = [self._block(block) for block in node.blocks]
        body: Any = blocks if len(blocks) > 1 else blocks[0] if blocks else None
        if node.prompt is not None:
            prompt = node.prompt
            body = self._node("PromptBlock", prompt, system=prompt.system, template=prompt.template, model=prompt.model)
        return self._node(
            str(node.kind), node, name=node.name, doc=_doc(node.doc), params=_params(node.params),
            returns=_params(node.returns), mixins=[self._mixin(mixin, "MixinSig") for mixin in node.mixins],
            pre_script=self._script(node.pre_script), body=body, catch=self._block_or_none(node.catch),
        )  # fmt: skip

    def _block(self, node: p.Block) -> Json:
        foreach = None
        if node.foreach is not None:
            iterable = encode_expr(node.foreach.iterable)
            foreach = {"type": "ForeachClause", "variable": node.foreach.variable, "iterable": iterable}
            foreach |= {key: value for key in ("mode", "failed") if (value := getattr(node.foreach, key)) is not None}
        yields = [self._yield(each) for each in node.yields]
        return self._node(
            "AndThenBlock", node, foreach=foreach, script=self._script(node.script),
            when=[self._case(case) for case in node.when], steps=[self._step(step) for step in node.steps],
            sys=[self._sys(each) for each in node.sys],
            **({"yield": yields[0]} if len(yields) == 1 else {"yields": yields}),
        )  # fmt: skip

    def _block_or_none(self, node: p.Block | None) -> Json | None:
        return None if node is None else self._block(node)

    def _case(self, node: p.Case) -> Json:
        condition = {} if node.condition is None else {"condition": encode_expr(node.condition)}
        return {"type": "WhenCase", **condition, "block": self._block(node.block)}

    def _script(self, node: p.Script | None) -> Json | None:
        return None if node is None else self._node("ScriptBlock", node, language=node.language, code=node.code)

    def _step(self, node: p.Step) -> Json:
        return self._node(
            "StepStmt", node, name=node.name, call=self._call(node.call), body=self._block_or_none(node.body),
            catch=self._block_or_none(node.catch), depends=list(node.depends), after=list(node.after),
        )  # fmt: skip

    def _yield(self, node: p.Yield) -> Json:
        return self._node("YieldStmt", node, call=self._call(node.call), into=node.into, depends=list(node.depends))

    def _sys(self, node: p.Sys) -> Json:
        return self._node(
            "SysStmt", node, kind=str(node.kind), args=_args(node.args), text=node.text, depends=list(node.depends),
            condition=None if node.condition is None else encode_expr(node.condition), after=list(node.after),
        )  # fmt: skip

    def _call(self, node: p.Call) -> Json:
        json: Json = {"type": "CallExpr", "id": node.id, "target": node.target}
        if node.resolved is not None:
            json["resolved"] = node.resolved
        if node.args:
            json["args"] = _args(node.args)
        if node.mixins:
            json["mixins"] = [self._mixin(mixin, "MixinCall") for mixin in node.mixins]
        if node.location is not None:
            self._located.append((json, node.location))
        return json

    def _mixin(self, node: p.Mixin, type_: str) -> Json:
        return self._node(
            type_, node, target=node.target, resolved=node.resolved, args=_args(node.args), alias=node.alias, into=node.into
        )


def _args(args: tuple[p.Arg, ...]) -> list[Json]:
    return [{"name": arg.name, "value": encode_expr(arg.value)} for arg in args]


def _params(params: tuple[p.Param, ...]) -> list[Json]:
    found = []
    for param in params:
        json: Json = {"name": param.name, "type": encode_type(param.type)}
        if param.reference:
            json["reference"] = True
        if param.default is not None:
            json["default"] = encode_expr(param.default)
        found.append(json)
    return found


def encode_type(type_: p.Type) -> str | Json:
    """Return a string, `{type: ArrayType, elementType}`, or the same with OptionalType."""
    match type_:
        case p.NamedType(name):
            return name
        case p.ListType(element):
            return {"type": "ArrayType", "elementType": encode_type(element)}
        case p.OptionalType(element):
            return {"type": "OptionalType", "elementType": encode_type(element)}
    assert_never(type_)


def _doc(doc: p.Doc | None) -> Json | None:
    if doc is None:
        return None
    json: Json = {"description": doc.description}
    for key, entries in (("params", doc.params), ("returns", doc.returns)):
        if entries:
            json[key] = [{"name": name, "description": text} for name, text in entries]
    return json


def _location(location: p.Location) -> Json:
    json: Json = {
        "line": location.line,
        "column": location.column,
        "endLine": location.end_line,
        "endColumn": location.end_column,
    }
    if location.source is not None:
        json["sourceId"] = location.source
    if location.code_line is not None:
        json["codeLine"] = location.code_line
    return json


def encode_expr(expr: p.Expr) -> Json:
    """Return the JSON of an expression."""
    kind = type(expr)
    if kind in _REFERENCES:
        return {"type": kind.__name__, "path": list(cast(p.StepRef, expr).path)}
    if kind in _LITERALS:
        return {"type": kind.__name__, "value": cast(p.String, expr).value}
    return _encode_compound(expr)


_REFERENCES = frozenset([p.InputRef, p.StepRef, p.LoopRef])
_LITERALS = frozenset([p.String, p.Int, p.Double, p.Boolean])


def _encode_compound(expr: p.Expr) -> Json:
    match expr:
        case p.Null():
            return {"type": "Null"}
        case p.Concat(operands):
            return {"type": "ConcatExpr", "operands": list(map(encode_expr, operands))}
        case p.Binary(operator, left, right):
            return {"type": "BinaryExpr", "operator": operator, "left": encode_expr(left), "right": encode_expr(right)}
        case p.Chain(operands, operators):
            return {"type": "ChainExpr", "operators": list(operators), "operands": list(map(encode_expr, operands))}
        case p.Unary(operator, operand):
            return {"type": "UnaryExpr", "operator": operator, "operand": encode_expr(operand)}
        case p.ArrayLiteral(elements):
            return {"type": "ArrayLiteral", "elements": list(map(encode_expr, elements))}
        case p.MapLiteral(entries):
            return {"type": "MapLiteral", "entries": [{"key": key, "value": encode_expr(item)} for key, item in entries]}
        case p.Index(target, index, optional):
            json = {"type": "IndexExpr", "target": encode_expr(target), "index": encode_expr(index)}
            return {**json, "optional": True} if optional else json
        case p.Function(name, args):
            return {"type": "FunctionExpr", "name": name, "args": list(map(encode_expr, args))}
    raise AssertionError(f"{expr} is not compound")
