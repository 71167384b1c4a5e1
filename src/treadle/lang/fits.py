"""Whether a JSON value fits a type of the language. Pure."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice

from treadle.lang.program import ListType, OptionalType, Program, Type
from treadle.model.values import BlobRef, Json

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
