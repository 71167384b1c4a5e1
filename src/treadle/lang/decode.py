"""JSON to compiled records, with the indexes that make lookups O(1)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from treadle.lang import program as p

Json = Mapping[str, Any]
N = TypeVar("N", bound=p.Node)


class InvalidProgram(ValueError):
    """The JSON is not a compiled AFL program."""


def decode_program(json: Json) -> p.Program:
    """Load a program; raise `InvalidProgram` for JSON of another shape."""
    try:
        return _Decoder().program(json)
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise InvalidProgram(f"not a compiled AFL program: {type(error).__name__}: {error}") from error


class _Decoder:
    def __init__(self) -> None:
        self._nodes: dict[str, p.Node] = {}
        self._facets: dict[str, p.Facet] = {}
        self._schemas: dict[str, p.Schema] = {}
        self._implicits: dict[str, list[p.Implicit]] = {}
        self._short: dict[str, list[p.Facet]] = {}

    def _node(self, node: N) -> N:
        self._nodes[node.id] = node
        return node

    def program(self, json: Json) -> p.Program:
        if json.get("type") != "Program":
            raise InvalidProgram(f"expected type Program, found {json.get('type')!r}")
        declarations = tuple(self._declaration(each) for each in json.get("declarations", ()))
        return p.Program(
            json["id"], declarations, _location(json), self._facets, self._schemas, self._nodes,
            {name: tuple(found) for name, found in self._implicits.items()},
            {name: tuple(found) for name, found in self._short.items()},
        )  # fmt: skip

    def _declaration(self, json: Json) -> p.Declaration:
        if json["type"] != "Namespace":
            return self._item(json, None)
        name = json["name"]
        items = tuple(self._item(each, name) for each in json.get("declarations", ()))
        return self._node(p.Namespace(json["id"], name, tuple(json.get("uses", ())), items, _doc(json), _location(json)))

    def _item(self, json: Json, namespace: str | None) -> p.Facet | p.Implicit | p.Schema:
        match json["type"]:
            case "ImplicitDecl":
                call = self._call(json["call"])
                implicit = p.Implicit(json["id"], json["name"], call, namespace, _location(json))
                self._implicits.setdefault(call.name, []).append(implicit)
                return self._node(implicit)
            case "SchemaDecl":
                fields = _params(json, "fields")
                schema = p.Schema(json["id"], json["name"], namespace, fields, _doc(json), _location(json))
                self._schemas[schema.qualified_name] = schema
                return self._node(schema)
            case _:
                return self._facet(json, namespace)

    def _facet(self, json: Json, namespace: str | None) -> p.Facet:
        body = json.get("body")
        prompt: p.Prompt | None = None
        blocks: tuple[p.Block, ...] = ()
        if isinstance(body, list):
            blocks = tuple(self._block(each) for each in body)
        elif body is not None and body["type"] == "PromptBlock":
            texts = (body.get("template"), body.get("system"), body.get("model"))
            prompt = self._node(p.Prompt(body["id"], *texts, _location(body)))
        elif body is not None:
            blocks = (self._block(body),)
        facet = p.Facet(
            json["id"], p.FacetKind(json["type"]), json["name"], namespace, _params(json, "params"),
            _params(json, "returns"), self._mixins(json), self._script(json.get("pre_script")), blocks, prompt,
            self._block_or_none(json.get("catch")), _doc(json), _location(json),
        )  # fmt: skip
        self._facets[facet.qualified_name] = facet
        self._short.setdefault(facet.name, []).append(facet)
        return self._node(facet)

    def _block(self, json: Json) -> p.Block:
        foreach = json.get("foreach")
        loop = None if foreach is None else p.Foreach(foreach["variable"], decode_expr(foreach["iterable"]))
        yields = (json["yield"],) if "yield" in json else json.get("yields", ())
        block = p.Block(
            json["id"], loop, self._script(json.get("script")), tuple(self._case(each) for each in json.get("when", ())),
            tuple(self._step(each) for each in json.get("steps", ())),
            tuple(self._sys(each) for each in json.get("sys", ())),
            tuple(self._yield(each) for each in yields), _location(json),
        )  # fmt: skip
        return self._node(block)

    def _block_or_none(self, json: Json | None) -> p.Block | None:
        return None if json is None else self._block(json)

    def _case(self, json: Json) -> p.Case:
        return p.Case(_expr_or_none(json.get("condition")), self._block(json["block"]))

    def _script(self, json: Json | None) -> p.Script | None:
        if json is None:
            return None
        return self._node(p.Script(json["id"], json["code"], json["language"], _location(json)))

    def _step(self, json: Json) -> p.Step:
        step = p.Step(
            json["id"], json["name"], self._call(json["call"]), self._block_or_none(json.get("body")),
            self._block_or_none(json.get("catch")), tuple(json.get("depends", ())), _location(json),
        )  # fmt: skip
        return self._node(step)

    def _yield(self, json: Json) -> p.Yield:
        depends = tuple(json.get("depends", ()))
        return self._node(p.Yield(json["id"], self._call(json["call"]), json.get("into"), depends, _location(json)))

    def _sys(self, json: Json) -> p.Sys:
        found = p.Sys(
            json["id"], p.SysKind(json["kind"]), _args(json), _expr_or_none(json.get("condition")), json.get("text"),
            tuple(json.get("depends", ())), _location(json),
        )  # fmt: skip
        return self._node(found)

    def _call(self, json: Json) -> p.Call:
        args, mixins = _args(json), self._mixins(json)
        return self._node(p.Call(json["id"], json["target"], json.get("resolved"), args, mixins, _location(json)))

    def _mixins(self, json: Json) -> tuple[p.Mixin, ...]:
        found = []
        for each in json.get("mixins", ()):
            mixin = p.Mixin(
                each["id"], each["target"], each.get("resolved"), _args(each), each.get("alias"), each.get("into"),
                _location(each),
            )  # fmt: skip
            found.append(self._node(mixin))
        return tuple(found)


def _args(json: Json) -> tuple[p.Arg, ...]:
    return tuple(p.Arg(arg["name"], decode_expr(arg["value"])) for arg in json.get("args", ()))


def _params(json: Json, key: str) -> tuple[p.Param, ...]:
    return tuple(
        p.Param(each["name"], decode_type(each["type"]), _expr_or_none(each.get("default")), each.get("reference", False))
        for each in json.get(key, ())
    )


def _doc(json: Json) -> p.Doc | None:
    doc = json.get("doc")
    if doc is None:
        return None
    params, returns = (tuple((entry["name"], entry["description"]) for entry in doc.get(key, ())) for key in ("params", "returns"))
    return p.Doc(doc["description"], params, returns)


def _location(json: Json) -> p.Location | None:
    at = json.get("location")
    if at is None:
        return None
    return p.Location(at["line"], at["column"], at["endLine"], at["endColumn"], at.get("sourceId"), at.get("codeLine"))


def decode_type(json: str | Json) -> p.Type:
    """The inverse of `encode_type`."""
    if isinstance(json, str):
        return p.NamedType(json)
    return p.ListType(decode_type(json["elementType"]))


def _expr_or_none(json: Json | None) -> p.Expr | None:
    return None if json is None else decode_expr(json)


def decode_expr(json: Json) -> p.Expr:
    """The inverse of `encode_expr`."""
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
            return p.StepRef(tuple(json["path"]))
        case "LoopRef":
            return p.LoopRef(tuple(json["path"]))
        case "ConcatExpr":
            return p.Concat(tuple(map(decode_expr, json["operands"])))
        case "BinaryExpr":
            return p.Binary(json["operator"], decode_expr(json["left"]), decode_expr(json["right"]))
        case "UnaryExpr":
            return p.Unary(json["operator"], decode_expr(json["operand"]))
        case "ArrayLiteral":
            return p.ArrayLiteral(tuple(map(decode_expr, json["elements"])))
        case "MapLiteral":
            return p.MapLiteral(tuple((entry["key"], decode_expr(entry["value"])) for entry in json["entries"]))
        case "IndexExpr":
            return p.Index(decode_expr(json["target"]), decode_expr(json["index"]))
        case other:
            raise InvalidProgram(f"unknown kind of expression: {other!r}")
