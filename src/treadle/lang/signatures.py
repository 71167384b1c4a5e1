"""Types and values of the parameters of a facet: as texts, for forms; whether a JSON value fits a type. Pure."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any

from treadle.lang.nodes import (
    ArrayLiteral,
    Boolean,
    Double,
    Expr,
    Facet,
    Int,
    ListType,
    MapLiteral,
    NamedType,
    Null,
    OptionalType,
    String,
    Type,
    Unary,
    named_type,
)
from treadle.lang.program import Program
from treadle.model.values import BlobRef, Json


def type_words(wanted: Type) -> str:
    """Return a type in AFL syntax."""
    match wanted:
        case ListType(element):
            return f"[{type_words(element)}]"
        case OptionalType(element):
            return f"{type_words(element)}?"
        case NamedType(name):
            return name


def literal_of(expr: Expr) -> tuple[bool, Any]:
    """Return whether the expression is a constant, and its value."""
    match expr:
        case String(value) | Int(value) | Double(value) | Boolean(value):
            return True, value
        case Null():
            return True, None
        case Unary("-", Int(value) | Double(value)):
            return True, -value
        case ArrayLiteral(elements):
            parts = [literal_of(each) for each in elements]
            known = all(found for found, _ in parts)
            return known, [value for _, value in parts] if known else None
        case MapLiteral(entries):
            named = [(name, *literal_of(each)) for name, each in entries]
            known = all(found for _, found, _ in named)
            return known, {name: value for name, _, value in named} if known else None
        case _:
            return False, None


def schemas_of(program: Program, facet: Facet) -> list[str]:
    """Return the names of all schemas used by its parameters, in order of first use."""
    seen: dict[str, None] = {}
    left = [param.type for param in facet.params]
    while left:
        wanted = named_type(left.pop(0))
        schema = program.find_schema(wanted.name)
        if schema is not None and wanted.name not in seen:
            seen[wanted.name] = None
            left += [field.type for field in schema.fields]
    return list(seen)


# --- JSON values against types ---------------------------------------------------------------------------------------

_SHOWN = 5
"""Limit on the mismatches reported for one list."""


def misfits(program: Program, place: str, wanted: Type, value: Json) -> list[str]:
    """The mismatches, each with its place in the value. A value that is stored elsewhere fits, except in place of a list."""
    if isinstance(value, BlobRef):
        is_other = isinstance(wanted, ListType) and value.is_list is False
        return [f"{place} must be a list"] if is_other else []
    if isinstance(wanted, OptionalType):
        return [] if value is None else misfits(program, place, wanted.element, value)
    if isinstance(wanted, ListType):
        if not isinstance(value, list):
            return [f"{place} must be a list, not {_kind(value)}"]
        found = (each for index, item in enumerate(value) for each in misfits(program, f"{place}[{index}]", wanted.element, item))
        return list(islice(found, _SHOWN))
    schema = program.find_schema(wanted.name)
    if schema is not None:
        if not isinstance(value, dict):
            return [f"{place} must be a {schema.name} (an object), not {_kind(value)}"]
        problems = [
            f"{place}.{field.name} is missing" for field in schema.fields if field.default is None and field.name not in value
        ]
        for field in schema.fields:
            if field.name in value:
                problems += misfits(program, f"{place}.{field.name}", field.type, value[field.name])
        return problems
    fits = _BUILT_IN.get(wanted.name)
    if fits is None or fits(value):
        return []
    return [f"{place} must be a {wanted.name}, not {_kind(value)}"]


def _number(value: Json) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


_BUILT_IN: dict[str, Callable[[Json], bool]] = {
    "String": lambda value: isinstance(value, str),
    "Long": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "Int": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "Double": _number,
    "Boolean": lambda value: isinstance(value, bool),
}


def _kind(value: Json) -> str:
    names = {dict: "an object", list: "a list", str: "a string", bool: "a boolean", int: "a number", float: "a number"}
    return names.get(type(value), "null")
