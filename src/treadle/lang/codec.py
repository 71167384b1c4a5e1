"""Decodes a compiled program from JSON, in the form of the AFL reference, with the indexes that make lookups O(1).

Empty lists and absent parts are left out. A program of the reference implementation is completed when it is decoded: ids from
the path, resolved names, dependencies, loop variables. Parts that are present are kept. An ambiguous short name means its first
declaration, as in the reference's runtime.

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
- `strict: true` on Program: a result of a handler that does not fit the declared returns fails its step.
- `codeLine` in the location of a ScriptBlock: the line of the source where `code` begins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from treadle.lang import nodes
from treadle.lang.program import Program, ProgramNode
from treadle.model.names import short_name

Json = Mapping[str, Any]
JsonDict = dict[str, Any]
FACET_KINDS = {
    nodes.FacetKind.FACET: "FacetDecl", nodes.FacetKind.EVENT: "EventFacetDecl", nodes.FacetKind.WORKFLOW: "WorkflowDecl",
}  # fmt: skip
_KINDS_BY_NAME = {name: kind for kind, name in FACET_KINDS.items()}
LITERALS = {str: "String", int: "Int", float: "Double", bool: "Boolean", type(None): "Null"}
_LITERAL_KINDS = frozenset(LITERALS.values())
_REFERENCES: dict[str, type[nodes.InputRef | nodes.StepRef | nodes.LoopRef]] = {
    "InputRef": nodes.InputRef, "StepRef": nodes.StepRef, "LoopRef": nodes.LoopRef,
}  # fmt: skip
EXPRESSIONS: dict[type[nodes.Expression], tuple[str, tuple[str, ...]]] = {
    nodes.Concat: ("ConcatExpr", ("operands",)),
    nodes.Binary: ("BinaryExpr", ("operator", "left", "right")),
    nodes.Chain: ("ChainExpr", ("operators", "operands")),
    nodes.Unary: ("UnaryExpr", ("operator", "operand")),
    nodes.ArrayLiteral: ("ArrayLiteral", ("elements",)),
    nodes.MapLiteral: ("MapLiteral", ("entries",)),
    nodes.Index: ("IndexExpr", ("target", "index")),
    nodes.FunctionCall: ("FunctionExpr", ("name", "args")),
}
"""The name of each kind in JSON, and its parts."""
_CLASSES: dict[str, Any] = {name: class_ for class_, (name, _) in EXPRESSIONS.items()}


N = TypeVar("N", bound=ProgramNode)
Note = Callable[[str], bool]
"""Notes the first name of a reference to a step; returns whether it is a loop variable."""

DECLARATION_LISTS = ("declarations", "namespaces", "facets", "eventFacets", "workflows", "implicits", "schemas")
"""Keys of declarations; older versions of the reference grouped them by kind."""


class InvalidProgram(ValueError):
    """The JSON is not a compiled AFL program."""


def decode_program(json: Json) -> Program:
    """Load a program; raise `InvalidProgram` for JSON of another shape."""
    with checked_shape():
        return _Decoder(json).program(json)


@contextmanager
def checked_shape() -> Iterator[None]:
    """Raise `InvalidProgram` for errors that JSON of another shape causes."""
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise InvalidProgram(f"not a compiled AFL program: {type(error).__name__}: {error}") from error


def qualified_name_of(json: Json, workflow: Json) -> str | None:
    """Return the qualified name of a compiled workflow in its program: the same declaration, else one with its id, or its name."""
    with checked_shape():
        workflows = [(name, declaration) for name, declaration in _all_declared(json) if declaration["type"] == "WorkflowDecl"]
    equal = [candidate for candidate in workflows if candidate[1] == workflow]
    for key in ("id", "name"):
        equal = equal or [candidate for candidate in workflows if key in workflow and candidate[1].get(key) == workflow[key]]
    return next((name for name, _ in equal), None)


def _all_declared(json: Json, prefix: str = "") -> Iterator[tuple[str, Json]]:
    """Yield all declarations with their qualified names."""
    for declaration in declarations_of(json):
        if declaration["type"] == "Namespace":
            yield from _all_declared(declaration, f"{declaration['name']}.")
        else:
            yield prefix + declaration["name"], declaration


def declarations_of(json: Json) -> list[Json]:
    """Return the declarations of a program or namespace."""
    return [declaration for key in DECLARATION_LISTS for declaration in json.get(key, ())]


@dataclass(slots=True)
class _Scope:
    """A block: its steps and loop variable, and the dependencies of the statement that is being decoded."""

    steps: frozenset[str]
    loop: str | None = None
    current: str | None = None
    depends: dict[str, None] = field(default_factory=dict)


class _Decoder:
    def __init__(self, json: Json) -> None:
        self._nodes: dict[str, ProgramNode] = {}
        self._facets: dict[str, nodes.Facet] = {}
        self._schemas: dict[str, nodes.Schema] = {}
        self._implicits: dict[str, list[nodes.Implicit]] = {}
        self._short: dict[str, list[nodes.Facet]] = {}
        self._namespaces: dict[str, str] = {}
        self._namespace: str | None = None
        self._uses: tuple[str, ...] = ()
        self._scopes: list[_Scope] = []
        self._targets: dict[str, tuple[str | None, str | None]] = {}
        """The resolved names and signature aliases of everything that a yield may name."""
        self._yields = False
        self._known: dict[bool, dict[str, str]] = {True: {}, False: {}}
        """Short names by qualified name, of facets (True) and of schemas."""
        for name, declaration in _all_declared(json):
            if declaration["type"] != "ImplicitDecl":
                self._known[declaration["type"] != "SchemaDecl"][name] = declaration["name"]

    def _node(self, node: N) -> N:
        self._nodes[node.id] = node
        if self._namespace is not None:
            self._namespaces[node.id] = self._namespace
        return node

    def program(self, json: Json) -> Program:
        if json.get("type") != "Program" or json.keys().isdisjoint(("id", *DECLARATION_LISTS)):
            raise InvalidProgram(f"expected type Program with declarations, found {json.get('type')!r}")
        declarations = tuple(self._declaration(declaration, f"program/{n}") for n, declaration in enumerate(declarations_of(json)))
        return Program(
            json.get("id") or "program", declarations, _location(json), json.get("strict") is True,
            self._facets, self._schemas, self._nodes,
            {name: tuple(implicits) for name, implicits in self._implicits.items()},
            {name: tuple(facets) for name, facets in self._short.items()}, self._namespaces,
        )  # fmt: skip

    def _declaration(self, json: Json, path: str) -> nodes.Declaration:
        if json["type"] != "Namespace":
            return self._item(json, path)
        self._namespace, self._uses = json["name"], tuple(json.get("uses", ()))
        items = tuple(self._item(item, f"{path}/{n}") for n, item in enumerate(declarations_of(json)))
        space = nodes.Namespace(json["name"], items, doc=_doc(json), uses=self._uses, **_place(json, path))
        self._node(space)
        self._namespace, self._uses = None, ()
        return space

    def _item(self, json: Json, path: str) -> nodes.Facet | nodes.Implicit | nodes.Schema:
        match json["type"]:
            case "ImplicitDecl":
                call = self._call(json["call"], f"{path}/call")
                implicit = nodes.Implicit(json["name"], call, namespace=self._namespace, **_place(json, path))
                self._implicits.setdefault(call.name, []).append(implicit)
                return self._node(implicit)
            case "SchemaDecl":
                fields = self._params(json, "fields")
                schema = nodes.Schema(json["name"], fields, _doc(json), namespace=self._namespace, **_place(json, path))
                self._schemas[schema.qualified_name] = schema
                return self._node(schema)
            case _:
                return self._facet(json, f"{self._namespace}.{json['name']}" if self._namespace else json["name"])

    def _facet(self, json: Json, path: str) -> nodes.Facet:
        body = json.get("body")
        prompt: nodes.PromptBlock | None = None
        blocks: tuple[nodes.Block, ...] = ()
        mixins = self._mixins(json, path)
        targets = {
            name: (mixin.resolved, mixin.alias) for mixin in mixins for name in (mixin.alias, short_name(mixin.target)) if name
        }
        self._targets = {**targets, json["name"]: (path, None)}
        if isinstance(body, list):
            blocks = tuple(self._block(block, f"{path}/block-{n}") for n, block in enumerate(body))
        elif body is not None and body["type"] == "PromptBlock":
            directives = tuple(
                nodes.Directive(nodes.Name(kind), body[kind]) for kind in nodes.DIRECTIVES if body.get(kind) is not None
            )
            prompt = self._node(nodes.PromptBlock(directives, **_place(body, f"{path}/prompt")))
        elif body is not None:
            blocks = (self._block(body, f"{path}/block-0"),)
        facet = nodes.Facet(
            json["name"], _KINDS_BY_NAME[json["type"]], self._params(json, "params"), self._params(json, "returns"), mixins,
            self._script(json.get("pre_script"), f"{path}/pre-script"), blocks, prompt,
            self._block_or_none(json.get("catch"), f"{path}/catch"), _doc(json), namespace=self._namespace, **_place(json, path),
        )  # fmt: skip
        self._facets[facet.qualified_name] = facet
        self._short.setdefault(facet.name, []).append(facet)
        return self._node(facet)

    def _block(self, json: Json, path: str) -> nodes.Block:
        foreach = json.get("foreach")
        loop = None
        if foreach is not None:
            loop = nodes.Foreach(foreach["variable"], self._expr(foreach["iterable"]), foreach.get("mode"), foreach.get("failed"))
        yields = (json["yield"],) if json.get("yield") else json.get("yields", ())
        when = tuple(
            nodes.Case(self._expr_or_none(case.get("condition")), self._block(case["block"], f"{path}/when-case-{n}"))
            for n, case in enumerate(json.get("when", ()))
        )
        steps = json.get("steps", ())
        self._scopes.append(_Scope(frozenset(step["name"] for step in steps), None if loop is None else loop.variable))
        script = self._script(json.get("script"), f"{path}/script")
        statements: tuple[nodes.Statement, ...] = (
            *[self._step(step, f"{path}/{step['name']}") for step in steps],
            *[self._sys(statement, f"{path}/sys-{n}") for n, statement in enumerate(json.get("sys", ()))],
            *[self._yield(statement, f"{path}/yield-{n}") for n, statement in enumerate(yields)],
        )
        block = nodes.Block(statements, loop, script, when or None, **_place(json, path))
        self._scopes.pop()
        return self._node(block)

    def _block_or_none(self, json: Json | None, path: str) -> nodes.Block | None:
        return None if json is None else self._block(json, path)

    def _script(self, json: Json | None, path: str) -> nodes.Script | None:
        if json is None:
            return None
        return self._node(nodes.Script(json["code"], json.get("language", "python"), **_place(json, path)))

    def _begin(self, name: str | None = None) -> _Scope:
        """Begin a statement of the current block."""
        self._scopes[-1].current, self._scopes[-1].depends = name, {}
        return self._scopes[-1]

    def _step(self, json: Json, path: str) -> nodes.Step:
        scope, targets = self._begin(json["name"]), self._targets
        call = self._call(json["call"], f"{path}/call")
        self._targets = {short_name(call.target): (call.resolved, None), **targets}
        body = self._block_or_none(json.get("body"), f"{path}/block-0")
        catch = self._block_or_none(json.get("catch"), f"{path}/catch")
        self._targets = targets
        after = self._after(json)
        depends = tuple(json.get("depends", scope.depends))
        return self._node(nodes.Step(json["name"], call, body, catch, after=after, depends=depends, **_place(json, path)))

    def _after(self, json: Json) -> tuple[nodes.Name, ...]:
        for name in json.get("after", ()):
            self._note(name)
        return tuple(json.get("after", ()))

    def _yield(self, json: Json, path: str) -> nodes.Yield:
        scope, self._yields = self._begin(), True
        call = self._call(json["call"], f"{path}/call")
        self._yields = False
        into = json.get("into") or self._targets.get(short_name(call.target), (None, None))[1]
        return self._node(nodes.Yield(call, into=into, depends=tuple(json.get("depends", scope.depends)), **_place(json, path)))

    def _sys(self, json: Json, path: str) -> nodes.Sys:
        scope, args = self._begin(), self._args(json)
        condition, after = self._expr_or_none(json.get("condition")), self._after(json)
        kind, text, depends = nodes.SysKind(json["kind"]), json.get("text"), tuple(json.get("depends", scope.depends))
        return self._node(nodes.Sys(kind, args, condition, after=after, text=text, depends=depends, **_place(json, path)))

    def _call(self, json: Json, path: str) -> nodes.Call:
        args, mixins = self._args(json), self._mixins(json, path)
        own_schema = f"{self._namespace}.{json['target']}" in self._known[False]
        resolved = self._callee(json, (False, True) if own_schema else (True, False))
        return self._node(nodes.Call(json["target"], args, mixins, resolved=resolved, **_place(json, path)))

    def _mixins(self, json: Json, path: str) -> tuple[nodes.Mixin, ...]:
        mixins = []
        for n, entry in enumerate(json.get("mixins", ())):
            into = self._targets.get(short_name(entry["target"]), (None, None))[1] if self._yields else None
            mixin = nodes.Mixin(
                entry["target"], self._args(entry), entry.get("alias"), resolved=self._callee(entry, (True,)),
                into=entry.get("into") or into, **_place(entry, f"{path}/with-{n}"),
            )  # fmt: skip
            mixins.append(self._node(mixin))
        return tuple(mixins)

    def _callee(self, json: Json, kinds: Iterable[bool]) -> str | None:
        """Return the qualified name of a call's target; a yield names its owner or a signature mixin."""
        if "resolved" in json:
            return str(json["resolved"])
        if self._yields:
            return self._targets.get(short_name(json["target"]), (None, None))[0]
        return self._resolve(json["target"], kinds)

    def _resolve(self, name: str, kinds: Iterable[bool]) -> str | None:
        near = [name] if "." in name else [f"{self._namespace}.{name}", name, *(f"{use}.{name}" for use in self._uses)]
        for short_names in (self._known[is_facet] for is_facet in kinds):
            for full in (*near, *(full for full, short in short_names.items() if short == name)):
                if full in short_names:
                    return full
        return None

    def _note(self, name: str) -> bool:
        for scope in reversed(self._scopes):
            if name in scope.steps:
                if name != scope.current:
                    scope.depends.setdefault(name)
                return False
            if scope.loop == name:
                return True
        return False

    def _expr(self, json: Json) -> nodes.Expr:
        return decode_expr(json, self._note)

    def _expr_or_none(self, json: Json | None) -> nodes.Expr | None:
        return None if json is None else self._expr(json)

    def _args(self, json: Json) -> tuple[nodes.Arg, ...]:
        return tuple(nodes.Arg(arg["name"], self._expr(arg["value"])) for arg in json.get("args", ()))

    def _params(self, json: Json, key: str) -> tuple[nodes.Param, ...]:
        params = []
        for param in json.get(key, ()):
            type_ = decode_type(param.get("type", "Json"), self._type_name)
            default = self._expr_or_none(param.get("default"))
            reference = param.get("reference", False) or nodes.named_type(type_).name in self._known[True]
            params.append(nodes.Param(param["name"], type_, default, reference))
        return tuple(params)

    def _type_name(self, name: str) -> str:
        return name if name in nodes.BUILTIN_TYPES else self._resolve(name, (False, True)) or name


def _doc(json: Json) -> nodes.DocComment | None:
    doc = json.get("doc")
    if doc is None or isinstance(doc, str):
        return None if doc is None else nodes.DocComment(doc)
    params, returns = (tuple((entry["name"], entry["description"]) for entry in doc.get(key, ())) for key in ("params", "returns"))
    return nodes.DocComment(doc.get("description", ""), params, returns)


def _place(json: Json, path: str) -> dict[str, Any]:
    """Return the id of a node, which is the path if the JSON has none, and its location."""
    return {"id": json.get("id") or path, "location": _location(json)}


def _location(json: Json) -> nodes.Location | None:
    at = json.get("location")
    if at is None:
        return None
    line, column = at["line"], at["column"]
    end = at.get("endLine") or line, at.get("endColumn") or column
    return nodes.Location(line, column, *end, at.get("sourceId"), at.get("codeLine"))


def decode_type(json: str | Json, resolve: Callable[[str], str] = str) -> nodes.Type:
    """Return a type from its JSON."""
    if isinstance(json, str):
        return nodes.NamedType(resolve(json))
    kind = nodes.OptionalType if json.get("type") == "OptionalType" else nodes.ListType
    return kind(decode_type(json["elementType"], resolve))


def decode_expr(json: Json, note: Note = lambda _: False) -> nodes.Expr:
    """Return an expression from its JSON."""
    kind: str = json["type"]
    if kind in _REFERENCES:
        is_loop = kind == "StepRef" and note(json["path"][0])
        return (nodes.LoopRef if is_loop else _REFERENCES[kind])(tuple(json["path"]))
    if kind == "Null":
        return nodes.Literal(None)
    if kind in _LITERAL_KINDS:
        return nodes.Literal(float(json["value"]) if kind == "Double" else json["value"])
    if kind not in _CLASSES:
        raise InvalidProgram(f"unknown kind of expression: {kind!r}")
    class_ = _CLASSES[kind]
    parts = {name: _decode_part(json[name], note) for name in EXPRESSIONS[class_][1]}
    if class_ is nodes.Index:
        parts["optional"] = json.get("optional", False)
    expression: nodes.Expr = class_(**parts)
    return expression


def _decode_part(part: Any, note: Note) -> Any:
    if isinstance(part, list):
        return tuple(_decode_part(inner, note) for inner in part)
    if isinstance(part, str):
        return part
    return nodes.Arg(part["key"], decode_expr(part["value"], note)) if "key" in part else decode_expr(part, note)
