"""Types of values: built-in types, lists, schemas, facets (step references), map literals, null, and the unknown type.

Every expression has a type. `UNKNOWN` is the type of anything that cannot be determined, such as the attributes of an external
facet or of a name that was already reported; like `Json`, it fits every type, so one mistake causes one diagnostic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

from treadle.lang.nodes import BUILTIN_TYPES
from treadle.lang.nodes import ListType as ListType
from treadle.lang.nodes import NamedType as NamedType
from treadle.lang.nodes import OptionalType as OptionalType


@dataclass(frozen=True, slots=True)
class RecordType:
    """The type of a map literal: its keys, in order, with the types of their values."""

    fields: tuple[tuple[str, Type], ...]


Type = NamedType | ListType | OptionalType | RecordType

BUILTIN: Mapping[str, NamedType] = {name: NamedType(name) for name in BUILTIN_TYPES}
STRING, LONG, INT, DOUBLE, BOOLEAN, JSON = (BUILTIN[name] for name in ("String", "Long", "Int", "Double", "Boolean", "Json"))
UNKNOWN = NamedType("?")
NULL = NamedType("null")

_ANYTHING = frozenset(["?", "Json"])
_NUMBERS = frozenset(["Long", "Int", "Double"])
_SCALARS = _NUMBERS | {"String", "Boolean"}
_TYPE_TEXT_LIMIT = 80  # characters of a type that a message shows
_ARTICLES = {"Int": "an Int", "?": "unknown", "Json": "Json", "null": "null"}

Fields = Callable[[str], "Mapping[str, Type] | None"]
"""Returns the fields of the schema with this qualified name, or None if there is no such schema."""


def list_of(element: Type) -> ListType:
    """Return the type of lists with such elements; unlike the list types of a program, they may be map literals."""
    return ListType(cast(Any, element))


def optional(type_: Type) -> Type:
    """Return the type of a value that may be null as well."""
    return type_ if isinstance(type_, OptionalType) or type_ == NULL or is_anything(type_) else OptionalType(cast(Any, type_))


def required(type_: Type) -> Type:
    """Return the type of a value if it is not null."""
    return type_.element if type(type_) is OptionalType else type_


class Misfit(NamedTuple):
    """Why a value does not fit: the path into the value (`[...]` is any element), the type wanted there, the type found.

    Without `found` the value has nothing at `path`; without `wanted` the schema has no such field.
    """

    path: str
    wanted: Type | None
    found: Type | None


def words(type_: Type) -> str:
    """Return a type in AFL syntax; a map literal as `#{key: Type}`."""
    if isinstance(type_, NamedType):
        return type_.name
    if isinstance(type_, ListType):
        return f"[{words(type_.element)}]"
    if isinstance(type_, OptionalType):
        return f"{words(type_.element)}?"
    return "#{" + ", ".join(f"{name}: {words(field_type)}" for name, field_type in type_.fields) + "}"


def describe(type_: Type) -> str:
    """Return a type as a noun phrase."""
    if isinstance(type_, RecordType):
        return "a map"
    if isinstance(type_, OptionalType):
        return f"{describe(type_.element)} or null"
    if isinstance(type_, ListType):
        text = words(type_)
        return "a list" if is_anything(type_.element) or len(text) > _TYPE_TEXT_LIMIT else f"a list ({text})"
    return _ARTICLES.get(type_.name) or f"a {type_.name}"


def is_anything(type_: Type) -> bool:
    """Return whether values of this type may be anything; `Json` includes null."""
    if type(type_) is OptionalType:
        type_ = type_.element
    return type(type_) is NamedType and type_.name in _ANYTHING


def is_number(type_: Type) -> bool:
    return type(type_) is NamedType and type_.name in _NUMBERS


def is_scalar(type_: Type) -> bool:
    """Return whether values of this type have no parts."""
    return type(type_) is NamedType and type_.name in _SCALARS


def may_be(type_: Type, *wanted: NamedType) -> bool:
    """Return whether a value of this type can be of one of the wanted built-in types."""
    return is_anything(type_) or required(type_) in wanted


def join(types: Iterable[Type]) -> Type:
    """Return the type of a value that has one of these types: the common one, a Double for mixed numbers, else Json."""
    joined: Type | None = None
    for type_ in types:
        if joined is None or joined == type_:
            joined = type_
        elif NULL in (joined, type_) or isinstance(joined, OptionalType) or isinstance(type_, OptionalType):
            joined = optional(join([required(kind) for kind in (joined, type_) if kind != NULL]))
        elif is_number(joined) and is_number(type_):
            joined = DOUBLE if DOUBLE in (joined, type_) else LONG
        elif isinstance(joined, ListType) and isinstance(type_, ListType):
            joined = list_of(join((joined.element, type_.element)))
        else:
            return UNKNOWN if UNKNOWN in (joined, type_) else JSON
    return UNKNOWN if joined is None else joined


def misfit(actual: Type, wanted: Type, fields: Fields) -> Misfit | None:
    """Return the first reason why a value of type `actual` does not fit the type `wanted`; None if it fits or may fit.

    Whole numbers fit `Double`; schemas and map literals are compared by their fields.
    """
    return _misfit(actual, wanted, fields, "", set())


def _misfit(actual: Type, wanted: Type, fields: Fields, path: str, seen: set[tuple[str, str]]) -> Misfit | None:
    if actual is wanted or is_anything(actual) or is_anything(wanted):
        return None
    if isinstance(wanted, OptionalType):
        return None if actual == NULL else _misfit(required(actual), wanted.element, fields, path, seen)
    wrong = Misfit(path, wanted, actual)
    if isinstance(actual, OptionalType):
        return _misfit(actual.element, wanted, fields, path, seen) or wrong
    if isinstance(wanted, ListType):
        if not isinstance(actual, ListType):
            return wrong
        return _misfit(actual.element, wanted.element, fields, f"{path}[...]", seen)
    if isinstance(wanted, RecordType):
        return None if _fields_of(actual, fields) is not None else wrong
    if actual == wanted or (is_number(actual) and wanted.name == "Double"):
        return None
    if is_number(actual) and is_number(wanted) and actual != DOUBLE:
        return None
    if is_scalar(wanted) or wanted == NULL:
        return wrong
    needed = fields(wanted.name)
    has = _fields_of(actual, fields)
    if needed is None:  # a step reference; `check_call` checks its arguments
        return wrong if is_scalar(actual) or isinstance(actual, ListType) else None
    if has is None:
        return wrong
    if isinstance(actual, NamedType):
        if (actual.name, wanted.name) in seen:
            return None
        seen.add((actual.name, wanted.name))
    for name, type_ in needed.items():
        if name not in has:
            if isinstance(type_, OptionalType):
                continue
            return Misfit(f"{path}.{name}", type_, None)
        field_misfit = _misfit(has[name], type_, fields, f"{path}.{name}", seen)
        if field_misfit is not None:
            return field_misfit
    if isinstance(actual, RecordType):
        return next((Misfit(f"{path}.{name}", None, type_) for name, type_ in actual.fields if name not in needed), None)
    return None


def _fields_of(type_: Type, fields: Fields) -> Mapping[str, Type] | None:
    if isinstance(type_, RecordType):
        return dict(type_.fields)
    return fields(type_.name) if isinstance(type_, NamedType) else None


def comparable(one: Type, other: Type, fields: Fields) -> bool:
    """Return whether values of the two types can be equal."""
    one, other = required(one), required(other)
    if NULL in (one, other):
        return True
    if is_number(one) and is_number(other):
        return True
    return misfit(one, other, fields) is None or misfit(other, one, fields) is None
