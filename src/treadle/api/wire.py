"""Records of the contract as JSON and back, and public records made from stored ones."""

from __future__ import annotations

import types
from collections.abc import Callable
from datetime import UTC, datetime
from functools import cache
from typing import Any, Self, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec

from treadle.model.clock import as_text

R = TypeVar("R")
_ABSENT = object()


class Instant(datetime):
    """An instant in UTC, in whole milliseconds; as JSON it is RFC 3339 with three fractional digits."""

    @classmethod
    def of(cls, at: int) -> Self:
        """The instant that many milliseconds after 1970."""
        return cls.fromtimestamp(at / 1000, UTC)

    @property
    def ms(self) -> int:
        """Milliseconds since 1970."""
        return round(self.timestamp() * 1000)


def record_of(kind: type[R], *sources: Any, **given: Any) -> R:
    """Make a public record from stored ones.

    Each field that is not `given` is the attribute of that name of the first source that has it, converted to the field's type:
    milliseconds to `Instant`, tuples to lists, nested records alike. A field that no source has keeps its default.
    """
    for name, convert, optional in _plan(kind):  # type: ignore[arg-type]
        if name in given:
            continue
        for source in sources:
            if (value := getattr(source, name, _ABSENT)) is not _ABSENT:
                given[name] = convert(value)
                break
        else:
            if not optional:
                raise TypeError(
                    f"{kind.__name__} needs {name}, which {', '.join(type(source).__name__ for source in sources)} lacks."
                )
    return kind(**given)


@cache
def _plan(kind: type) -> tuple[tuple[str, Callable[[Any], Any], bool], ...]:
    hints = get_type_hints(kind)
    return tuple((field.name, _converter(hints[field.name]), not field.required) for field in msgspec.structs.fields(kind))


def _converter(hint: Any) -> Callable[[Any], Any]:
    members = [member for member in get_args(hint) if member is not types.NoneType]
    if get_origin(hint) in (Union, types.UnionType) and len(members) == 1:
        inner = _converter(members[0])
        return inner if inner is _same else lambda value: None if value is None else inner(value)
    if hint is Instant:
        return lambda value: value if isinstance(value, Instant) else Instant.of(value)
    if hint is str:
        return str
    if get_origin(hint) is list:
        item = _converter(members[0])
        return list if item is _same else lambda value: [item(element) for element in value]
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return lambda value: value if isinstance(value, hint) else record_of(hint, value)
    return _same


def _same(value: Any) -> Any:
    return value


def _plain(value: Any) -> Any:
    if isinstance(value, Instant):
        return as_text(value.ms)
    raise NotImplementedError(f"Objects of type {type(value)} have no JSON form.")


def _typed(kind: type, value: Any) -> Any:
    if kind is Instant and isinstance(value, str):
        return Instant.fromisoformat(value)
    raise NotImplementedError(f"Objects of type {kind} cannot be read from JSON.")


def schema_hook(kind: type) -> dict[str, Any]:
    """The JSON schema of a type that msgspec does not know."""
    if kind is Instant:
        return {"type": "string", "format": "date-time"}
    raise NotImplementedError(f"{kind} has no JSON schema.")


def json_schema(kind: type) -> dict[str, Any]:
    """The JSON schema of a record, with definitions of the records in it."""
    schema: dict[str, Any] = msgspec.json.schema(kind, schema_hook=schema_hook)
    definitions = schema["$defs"]
    own: dict[str, Any] = definitions.pop(kind.__name__)
    return own | ({"$defs": definitions} if definitions else {})


_encoder = msgspec.json.Encoder(enc_hook=_plain)


def to_json(record: Any) -> bytes:
    """A record of the contract as JSON."""
    return _encoder.encode(record)


def to_builtins(record: Any) -> Any:
    """A record of the contract as dicts, lists and text; bytes stay bytes, which are not JSON."""
    return msgspec.to_builtins(record, enc_hook=_plain, builtin_types=(bytes, bytearray, memoryview))


def from_json(body: bytes, kind: Any) -> Any:
    """Decode a record from JSON; raises `msgspec.DecodeError`."""
    return msgspec.json.decode(body, type=kind, dec_hook=_typed)


def from_builtins(value: Any, kind: Any) -> Any:
    """Decode a record from dicts, lists and text; raises `msgspec.ValidationError`."""
    return msgspec.convert(value, type=kind, dec_hook=_typed)
