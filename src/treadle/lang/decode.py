"""JSON to compiled records, with the indexes that make lookups O(1).

A program of the reference implementation is completed on the way: ids from the path, resolved names, dependencies, loop variables.
Parts that are present are kept. An ambiguous short name means its first declaration, as in the reference's runtime.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from treadle.lang import program as p
from treadle.model.names import short_name

Json = Mapping[str, Any]
N = TypeVar("N", bound=p.Node)
Note = Callable[[str], bool]
"""Notes the first name of a reference to a step; returns whether it is a loop variable."""

_LISTS = ("declarations", "namespaces", "facets", "eventFacets", "workflows", "implicits", "schemas")
"""Keys of declarations; older versions of the reference grouped them by kind."""


class InvalidProgram(ValueError):
    """The JSON is not a compiled AFL program."""


def decode_program(json: Json) -> p.Program:
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
        found = [(name, each) for name, each in _all_declared(json) if each["type"] == "WorkflowDecl"]
    equal = [each for each in found if each[1] == workflow]
    for key in ("id", "name"):
        equal = equal or [each for each in found if key in workflow and each[1].get(key) == workflow[key]]
    return next((name for name, _ in equal), None)


def _all_declared(json: Json, prefix: str = "") -> Iterator[tuple[str, Json]]:
    """Yield all declarations with their qualified names."""
    for each in declarations_of(json):
        if each["type"] == "Namespace":
            yield from _all_declared(each, f"{each['name']}.")
        else:
            yield prefix + each["name"], each


def declarations_of(json: Json) -> list[Json]:
    """Return the declarations of a program or namespace."""
    return [each for key in _LISTS for each in json.get(key, ())]


@dataclass(slots=True)
class _Scope:
    """A block: its steps and loop variable, and the dependencies of the statement that is being decoded."""

    steps: frozenset[str]
    loop: str | None = None
    current: str | None = None
    depends: dict[str, None] = field(default_factory=dict)


class _Decoder:
    def __init__(self, json: Json) -> None:
        self._nodes: dict[str, p.Node] = {}
        self._facets: dict[str, p.Facet] = {}
        self._schemas: dict[str, p.Schema] = {}
        self._implicits: dict[str, list[p.Implicit]] = {}
        self._short: dict[str, list[p.Facet]] = {}
        self._namespaces: dict[str, str] = {}
        self._namespace: str | None = None
        self._uses: tuple[str, ...] = ()
        self._scopes: list[_Scope] = []
        self._targets: dict[str, tuple[str | None, str | None]] = {}
        """The resolved names and signature aliases of everything that a yield may name."""
        self._yields = False
        self._known: dict[bool, dict[str, str]] = {True: {}, False: {}}
        """Short names by qualified name, of facets (True) and of schemas."""
        for name, each in _all_declared(json):
            if each["type"] != "ImplicitDecl":
                self._known[each["type"] != "SchemaDecl"][name] = each["name"]

    def _node(self, node: N) -> N:
        self._nodes[node.id] = node
        if self._namespace is not None:
            self._namespaces[node.id] = self._namespace
        return node

    def program(self, json: Json) -> p.Program:
        if json.get("type") != "Program" or json.keys().isdisjoint(("id", *_LISTS)):
            raise InvalidProgram(f"expected type Program with declarations, found {json.get('type')!r}")
        declarations = tuple(self._declaration(each, f"program/{n}") for n, each in enumerate(declarations_of(json)))
        return p.Program(
            json.get("id") or "program", declarations, _location(json), self._facets, self._schemas, self._nodes,
            {name: tuple(found) for name, found in self._implicits.items()},
            {name: tuple(found) for name, found in self._short.items()}, self._namespaces,
        )  # fmt: skip

    def _declaration(self, json: Json, path: str) -> p.Declaration:
        if json["type"] != "Namespace":
            return self._item(json, path)
        self._namespace, self._uses = json["name"], tuple(json.get("uses", ()))
        items = tuple(self._item(each, f"{path}/{n}") for n, each in enumerate(declarations_of(json)))
        space = self._node(p.Namespace(json.get("id") or path, json["name"], self._uses, items, _doc(json), _location(json)))
        self._namespace, self._uses = None, ()
        return space

    def _item(self, json: Json, path: str) -> p.Facet | p.Implicit | p.Schema:
        match json["type"]:
            case "ImplicitDecl":
                call = self._call(json["call"], f"{path}/call")
                implicit = p.Implicit(json.get("id") or path, json["name"], call, self._namespace, _location(json))
                self._implicits.setdefault(call.name, []).append(implicit)
                return self._node(implicit)
            case "SchemaDecl":
                fields = self._params(json, "fields")
                schema = p.Schema(json.get("id") or path, json["name"], self._namespace, fields, _doc(json), _location(json))
                self._schemas[schema.qualified_name] = schema
                return self._node(schema)
            case _:
                return self._facet(json, f"{self._namespace}.{json['name']}" if self._namespace else json["name"])

    def _facet(self, json: Json, path: str) -> p.Facet:
        body = json.get("body")
        prompt: p.Prompt | None = None
        blocks: tuple[p.Block, ...] = ()
        mixins = self._mixins(json, path)
        found = {name: (each.resolved, each.alias) for each in mixins for name in (each.alias, short_name(each.target)) if name}
        self._targets = {**found, json["name"]: (path, None)}
        if isinstance(body, list):
            blocks = tuple(self._block(each, f"{path}/block-{n}") for n, each in enumerate(body))
        elif body is not None and body["type"] == "PromptBlock":
            texts = (body.get("template"), body.get("system"), body.get("model"))
            prompt = self._node(p.Prompt(body.get("id") or f"{path}/prompt", *texts, _location(body)))
        elif body is not None:
            blocks = (self._block(body, f"{path}/block-0"),)
        facet = p.Facet(
            json.get("id") or path, p.FacetKind(json["type"]), json["name"], self._namespace, self._params(json, "params"),
            self._params(json, "returns"), mixins, self._script(json.get("pre_script"), f"{path}/pre-script"), blocks, prompt,
            self._block_or_none(json.get("catch"), f"{path}/catch"), _doc(json), _location(json),
        )  # fmt: skip
        self._facets[facet.qualified_name] = facet
        self._short.setdefault(facet.name, []).append(facet)
        return self._node(facet)

    def _block(self, json: Json, path: str) -> p.Block:
        foreach = json.get("foreach")
        loop = None
        if foreach is not None:
            loop = p.Foreach(foreach["variable"], self._expr(foreach["iterable"]), foreach.get("mode"), foreach.get("failed"))
        yields = (json["yield"],) if json.get("yield") else json.get("yields", ())
        when = tuple(self._case(each, f"{path}/when-case-{n}") for n, each in enumerate(json.get("when", ())))
        steps = json.get("steps", ())
        self._scopes.append(_Scope(frozenset(each["name"] for each in steps), None if loop is None else loop.variable))
        block = p.Block(
            json.get("id") or path, loop, self._script(json.get("script"), f"{path}/script"), when,
            tuple(self._step(each, f"{path}/{each['name']}") for each in steps),
            tuple(self._sys(each, f"{path}/sys-{n}") for n, each in enumerate(json.get("sys", ()))),
            tuple(self._yield(each, f"{path}/yield-{n}") for n, each in enumerate(yields)), _location(json),
        )  # fmt: skip
        self._scopes.pop()
        return self._node(block)

    def _block_or_none(self, json: Json | None, path: str) -> p.Block | None:
        return None if json is None else self._block(json, path)

    def _case(self, json: Json, path: str) -> p.Case:
        return p.Case(self._expr_or_none(json.get("condition")), self._block(json["block"], path))

    def _script(self, json: Json | None, path: str) -> p.Script | None:
        if json is None:
            return None
        return self._node(p.Script(json.get("id") or path, json["code"], json.get("language", "python"), _location(json)))

    def _begin(self, name: str | None = None) -> _Scope:
        """Begin a statement of the current block."""
        self._scopes[-1].current, self._scopes[-1].depends = name, {}
        return self._scopes[-1]

    def _step(self, json: Json, path: str) -> p.Step:
        scope, targets = self._begin(json["name"]), self._targets
        call = self._call(json["call"], f"{path}/call")
        self._targets = {short_name(call.target): (call.resolved, None), **targets}
        body = self._block_or_none(json.get("body"), f"{path}/block-0")
        catch = self._block_or_none(json.get("catch"), f"{path}/catch")
        self._targets = targets
        after = self._after(json)
        depends = tuple(json.get("depends", scope.depends))
        return self._node(p.Step(json.get("id") or path, json["name"], call, body, catch, depends, _location(json), after))

    def _after(self, json: Json) -> tuple[str, ...]:
        for name in json.get("after", ()):
            self._note(name)
        return tuple(json.get("after", ()))

    def _yield(self, json: Json, path: str) -> p.Yield:
        scope, self._yields = self._begin(), True
        call = self._call(json["call"], f"{path}/call")
        self._yields = False
        into = json.get("into") or self._targets.get(short_name(call.target), (None, None))[1]
        return self._node(p.Yield(json.get("id") or path, call, into, tuple(json.get("depends", scope.depends)), _location(json)))

    def _sys(self, json: Json, path: str) -> p.Sys:
        scope, args = self._begin(), self._args(json)
        condition, after = self._expr_or_none(json.get("condition")), self._after(json)
        depends, kind = tuple(json.get("depends", scope.depends)), p.SysKind(json["kind"])
        return self._node(p.Sys(json.get("id") or path, kind, args, condition, json.get("text"), depends, _location(json), after))

    def _call(self, json: Json, path: str) -> p.Call:
        args, mixins = self._args(json), self._mixins(json, path)
        own_schema = f"{self._namespace}.{json['target']}" in self._known[False]
        resolved = self._callee(json, (False, True) if own_schema else (True, False))
        return self._node(p.Call(json.get("id") or path, json["target"], resolved, args, mixins, _location(json)))

    def _mixins(self, json: Json, path: str) -> tuple[p.Mixin, ...]:
        found = []
        for n, each in enumerate(json.get("mixins", ())):
            into = self._targets.get(short_name(each["target"]), (None, None))[1] if self._yields else None
            mixin = p.Mixin(
                each.get("id") or f"{path}/with-{n}", each["target"], self._callee(each, (True,)), self._args(each),
                each.get("alias"), each.get("into") or into, _location(each),
            )  # fmt: skip
            found.append(self._node(mixin))
        return tuple(found)

    def _callee(self, json: Json, kinds: Iterable[bool]) -> str | None:
        """Return the qualified name of a call's target; a yield names its owner or a signature mixin."""
        if "resolved" in json:
            return str(json["resolved"])
        if self._yields:
            return self._targets.get(short_name(json["target"]), (None, None))[0]
        return self._resolve(json["target"], kinds)

    def _resolve(self, name: str, kinds: Iterable[bool]) -> str | None:
        near = [name] if "." in name else [f"{self._namespace}.{name}", name, *(f"{use}.{name}" for use in self._uses)]
        for known in (self._known[is_facet] for is_facet in kinds):
            for full in (*near, *(full for full, short in known.items() if short == name)):
                if full in known:
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

    def _expr(self, json: Json) -> p.Expr:
        return decode_expr(json, self._note)

    def _expr_or_none(self, json: Json | None) -> p.Expr | None:
        return None if json is None else self._expr(json)

    def _args(self, json: Json) -> tuple[p.Arg, ...]:
        return tuple(p.Arg(arg["name"], self._expr(arg["value"])) for arg in json.get("args", ()))

    def _params(self, json: Json, key: str) -> tuple[p.Param, ...]:
        found = []
        for each in json.get(key, ()):
            type_ = decode_type(each.get("type", "Json"), self._type_name)
            default = self._expr_or_none(each.get("default"))
            reference = each.get("reference", False) or p.named_type(type_).name in self._known[True]
            found.append(p.Param(each["name"], type_, default, reference))
        return tuple(found)

    def _type_name(self, name: str) -> str:
        return name if name in p.BUILTIN_TYPES else self._resolve(name, (False, True)) or name


def _doc(json: Json) -> p.Doc | None:
    doc = json.get("doc")
    if doc is None or isinstance(doc, str):
        return None if doc is None else p.Doc(doc)
    params, returns = (tuple((entry["name"], entry["description"]) for entry in doc.get(key, ())) for key in ("params", "returns"))
    return p.Doc(doc.get("description", ""), params, returns)


def _location(json: Json) -> p.Location | None:
    at = json.get("location")
    if at is None:
        return None
    line, column = at["line"], at["column"]
    end = at.get("endLine") or line, at.get("endColumn") or column
    return p.Location(line, column, *end, at.get("sourceId"), at.get("codeLine"))


def decode_type(json: str | Json, resolve: Callable[[str], str] = str) -> p.Type:
    """The inverse of `encode_type`."""
    if isinstance(json, str):
        return p.NamedType(resolve(json))
    kind = p.OptionalType if json.get("type") == "OptionalType" else p.ListType
    return kind(decode_type(json["elementType"], resolve))


def decode_expr(json: Json, note: Note = lambda _: False) -> p.Expr:
    """The inverse of `encode_expr`."""

    def inner(each: Json) -> p.Expr:
        return decode_expr(each, note)

    match json["type"]:
        case "String":
            return p.String(json["value"])
        case "Int":
            return p.Int(json["value"])
        case "Double":
            return p.Double(float(json["value"]))
        case "Boolean":
            return p.Boolean(json["value"])
        case "Null":
            return p.Null()
        case "InputRef":
            return p.InputRef(tuple(json["path"]))
        case "StepRef":
            return (p.LoopRef if note(json["path"][0]) else p.StepRef)(tuple(json["path"]))
        case "LoopRef":
            return p.LoopRef(tuple(json["path"]))
        case "ConcatExpr":
            return p.Concat(tuple(map(inner, json["operands"])))
        case "BinaryExpr":
            return p.Binary(json["operator"], inner(json["left"]), inner(json["right"]))
        case "ChainExpr":
            return p.Chain(tuple(map(inner, json["operands"])), tuple(json["operators"]))
        case "UnaryExpr":
            return p.Unary(json["operator"], inner(json["operand"]))
        case "ArrayLiteral":
            return p.ArrayLiteral(tuple(map(inner, json["elements"])))
        case "MapLiteral":
            return p.MapLiteral(tuple((entry["key"], inner(entry["value"])) for entry in json["entries"]))
        case "IndexExpr":
            return p.Index(inner(json["target"]), inner(json["index"]), json.get("optional", False))
        case "FunctionExpr":
            return p.Function(json["name"], tuple(map(inner, json["args"])))
        case other:
            raise InvalidProgram(f"unknown kind of expression: {other!r}")
