"""AFL types as JSON schemas, and the check of values against them."""

from __future__ import annotations

import math
from collections.abc import Sequence

from treadle.lang.nodes import Doc, ListType, OptionalType, Param, Type
from treadle.lang.program import Program
from treadle.model.values import Json

_BUILT_IN: dict[str, dict[str, Json]] = {
    "String": {"type": "string"},
    "Long": {"type": "integer"},
    "Int": {"type": "integer"},
    "Double": {"type": "number"},
    "Boolean": {"type": "boolean"},
    "Json": {},
}
_SHOWN = 5
"""Problems listed in one message."""


def object_schema(program: Program, members: Sequence[Param], described: Sequence[tuple[str, str]] = ()) -> dict[str, Json]:
    """Return the JSON schema of an object with these members, all required but the optional ones; without members, of any object.

    Schemas of the program are in `$defs`, so that they may be recursive.
    """
    definitions: dict[str, Json] = {}
    texts = dict(described)
    properties: dict[str, Json] = {}
    for member in members:
        schema = _schema(program, member.type, definitions)
        properties[member.name] = schema | {"description": texts[member.name]} if texts.get(member.name) else schema
    result: dict[str, Json] = {"type": "object", "properties": properties}
    if members:
        result |= {"required": _required(members), "additionalProperties": False}
    return result | ({"$defs": definitions} if definitions else {})


def _required(members: Sequence[Param]) -> list[str]:
    return [member.name for member in members if not isinstance(member.type, OptionalType)]


def _schema(program: Program, kind: Type, definitions: dict[str, Json]) -> dict[str, Json]:
    if isinstance(kind, ListType):
        return {"type": "array", "items": _schema(program, kind.element, definitions)}
    if isinstance(kind, OptionalType):
        return {"anyOf": [_schema(program, kind.element, definitions), {"type": "null"}]}
    if kind.name in _BUILT_IN:
        return dict(_BUILT_IN[kind.name])
    schema = program.find_schema(kind.name)
    if schema is None:
        return {}  # a reference to a step, or a type that only an outer flow defines
    key = kind.name.replace(".", "__")
    if key not in definitions:
        definitions[key] = {}  # it may contain itself
        definition = object_schema(program, ())
        texts = dict((schema.doc or Doc()).params)
        properties: dict[str, Json] = {}
        for each in schema.fields:
            inner = _schema(program, each.type, definitions)
            properties[each.name] = inner | {"description": texts[each.name]} if texts.get(each.name) else inner
        definition |= {"properties": properties, "required": _required(schema.fields), "additionalProperties": False}
        if schema.doc is not None and schema.doc.description:
            definition["description"] = schema.doc.description
        definitions[key] = definition
    return {"$ref": f"#/$defs/{key}"}


def check_object(program: Program, members: Sequence[Param], value: Json, at: str = "") -> tuple[dict[str, Json], list[str]]:
    """Return the object converted to the members (3.0 is 3 for a Long), and its problems, as text for the model."""
    if not isinstance(value, dict):
        return {}, [f"{at or 'the answer'} must be an object, not {_kind(value)}"]
    if not members and not at:
        return value, []
    problems = [f"{_path(at, name)} is not declared" for name in value if name not in {each.name for each in members}]
    result: dict[str, Json] = {}
    for member in members:
        if member.name not in value:
            if not isinstance(member.type, OptionalType):
                problems.append(f"{_path(at, member.name)} is missing")
            continue
        result[member.name], found = _check(program, member.type, value[member.name], _path(at, member.name))
        problems += found
    return result, problems


def summary(problems: Sequence[str]) -> str:
    """Return the first problems in one line."""
    more = len(problems) - _SHOWN
    return "; ".join(problems[:_SHOWN]) + (f"; and {more} more" if more > 0 else "")


def _path(at: str, name: str) -> str:
    return f"{at}.{name}" if at else name


def _check(program: Program, kind: Type, value: Json, at: str) -> tuple[Json, list[str]]:
    if isinstance(kind, OptionalType):
        return (None, []) if value is None else _check(program, kind.element, value, at)
    if isinstance(kind, ListType):
        if not isinstance(value, list):
            return value, [f"{at} must be a list, not {_kind(value)}"]
        checked = [_check(program, kind.element, each, f"{at}[{number}]") for number, each in enumerate(value)]
        return [each for each, _ in checked], [problem for _, found in checked for problem in found]
    fits: bool
    match kind.name:
        case "String":
            fits = isinstance(value, str)
        case "Boolean":
            fits = isinstance(value, bool)
        case "Long" | "Int":
            if isinstance(value, float) and math.isfinite(value) and value.is_integer():
                value = int(value)
            fits = isinstance(value, int) and not isinstance(value, bool)
        case "Double":
            fits = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        case _:
            schema = program.find_schema(kind.name)
            return (value, []) if schema is None else check_object(program, schema.fields, value, at)
    return value, [] if fits else [f"{at} must be a {kind.name}, not {_kind(value)}"]


def _kind(value: Json) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "a Boolean"
        case int() | float():
            return f"the number {value}"
        case str():
            return "a String"
        case list():
            return "a list"
        case _:
            return "an object"
