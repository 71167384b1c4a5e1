"""Structures that are stored as JSON: fields that this version does not know are read, kept and written back.

Processes of two versions share a store during an upgrade. The older one must neither fail on a field that the newer one has
added, nor drop it when it writes the structure again. Every structure that is stored as JSON therefore derives from `Stored`,
is read with `read` or `convert`, and is written with `write` or `plain`. A structure without unknown fields costs nothing extra:
the strict decoder accepts it, and only a refused one is decoded again with its unknown fields set apart.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any, TypeVar, Union, cast, get_args, get_origin

import msgspec
from msgspec import UNSET, UnsetType

from treadle.model.errors import TreadleError, UnreadableValue
from treadle.model.values import CODEC_MARK, Json, foreign_value

MORE = "@more"
"""The name of the unknown fields while a structure is decoded; it is never stored."""

_MARK = f'"{MORE}":'.encode()


class Stored(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of structures that are stored as JSON; `more` has the fields that this version does not know."""

    more: dict[str, Any] | UnsetType = msgspec.field(default=UNSET, name=MORE)

    def __repr__(self) -> str:
        return _shown(self)


class StoredRow(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Base of stored structures that change in memory, such as steps."""

    more: dict[str, Any] | UnsetType = msgspec.field(default=UNSET, name=MORE)

    def __repr__(self) -> str:
        return _shown(self)


def words(known: Iterable[str]) -> msgspec.Meta:
    """Annotate a text that is one of these words: with any other one, which a newer version may add, it cannot be read."""
    return msgspec.Meta(pattern=f"^({'|'.join(known)})$")


AnyStored = Stored | StoredRow
S = TypeVar("S", bound=AnyStored)


def _shown(value: AnyStored) -> str:
    fields = (f"{name}={getattr(value, name)!r}" for name in value.__struct_fields__ if name != "more")
    return f"{type(value).__name__}({', '.join(fields)})"


def read(kind: type[S], text: str | bytes) -> S:
    """Decode the JSON text of a structure; raises `UnreadableValue`."""
    try:
        try:
            structure: S = _decoder(cast("Any", kind))(text)
            return structure
        except msgspec.ValidationError:
            value = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError, TreadleError) as error:
        raise _unreadable(kind, text, error) from None
    return convert(kind, value)


def convert(kind: type[S], value: Json) -> S:
    """Decode a structure from dicts and lists; raises `UnreadableValue`."""
    try:
        return msgspec.convert(value, kind)
    except (msgspec.ValidationError, TreadleError):
        pass
    try:
        return msgspec.convert(_set_apart(cast("Any", kind))(value), kind)
    except (msgspec.ValidationError, TreadleError) as error:
        raise _unreadable(kind, value, error) from None


def _unreadable(kind: type[Any], value: Json | bytes, error: Exception) -> UnreadableValue:
    if isinstance(value, dict) and value.get("code") == UnreadableValue.code:  # the store could not open it
        return UnreadableValue(str(value.get("message")))
    if isinstance(value, str) and value.startswith(CODEC_MARK):
        return foreign_value(value)
    return UnreadableValue(f"A stored {kind.__name__} cannot be read: {error}. It is damaged, or a newer version wrote it.")


def write(value: AnyStored) -> str:
    """Return the JSON text of a structure, with the unknown fields that it was read with."""
    text = msgspec.json.encode(value)
    return (text if _MARK not in text else msgspec.json.encode(plain(value))).decode()


def plain(value: AnyStored) -> dict[str, Any]:
    """Return a structure as dicts and lists, with the unknown fields that it was read with."""
    built: dict[str, Any] = msgspec.to_builtins(value)
    joined: dict[str, Any] = _join(value, built)
    return joined


@cache
def _decoder(kind: Any) -> Callable[[str | bytes], Any]:
    return msgspec.json.Decoder(kind).decode


@cache
def _fields(kind: type[AnyStored]) -> dict[str, tuple[str, Any]]:
    """Return the attribute and the type of each field, by its name in JSON."""
    return {field.encode_name: (field.name, field.type) for field in msgspec.structs.fields(kind) if field.encode_name != MORE}


@cache
def _nested(kind: type[AnyStored]) -> tuple[tuple[str, str], ...]:
    """Return the attribute and the JSON name of the fields that have structures in them."""
    return tuple((name, key) for key, (name, hint) in _fields(kind).items() if _set_apart(hint) is not _same)


def _same(value: Any) -> Any:
    return value


@cache
def _set_apart(hint: Any) -> Callable[[Any], Any]:
    """Return the function that moves the unknown fields of all structures in a value of this type to `MORE`."""
    if isinstance(hint, type) and issubclass(hint, AnyStored):
        return lambda value: _set_fields_apart(hint, value)
    inner = [move for move in map(_set_apart, get_args(hint)) if move is not _same]
    if not inner:
        return _same
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        return inner[0]
    if origin is dict:
        return lambda value: {key: inner[0](part) for key, part in value.items()} if isinstance(value, dict) else value
    return lambda value: [inner[0](part) for part in value] if isinstance(value, list | tuple) else value


def _set_fields_apart(kind: type[AnyStored], value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    fields = _fields(kind)
    known_values = {key: _set_apart(fields[key][1])(part) for key, part in value.items() if key in fields}
    more = {key: part for key, part in value.items() if key not in fields}
    return known_values | {MORE: more} if more else known_values


def _join(value: Any, built: Any) -> Any:
    """Return the built form of a value with the unknown fields of its structures beside the known ones."""
    if isinstance(value, AnyStored):
        for name, key in _nested(type(value)):
            if key in built:
                built[key] = _join(getattr(value, name), built[key])
        more = built.pop(MORE, None)
        return more | built if more else built
    if isinstance(value, list | tuple):
        return [_join(part, other) for part, other in zip(value, built, strict=True)]
    if isinstance(value, dict):
        return {key: _join(value.get(key), other) for key, other in built.items()}
    return built
