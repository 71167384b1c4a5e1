"""Parameters of a facet as texts and values, for forms. Pure."""

from __future__ import annotations

from typing import Any

from treadle.lang.program import (
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
    Program,
    String,
    Type,
    Unary,
    named_type,
)


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
