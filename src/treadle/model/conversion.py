"""Conversion between values of annotated types and the plain JSON that is stored. Pure.

A `Converter` is built once per annotation. `dump` checks a value before it is stored, `load` returns it as its type. Both raise
`InvalidPayload` with the path of the wrong field. A value whose JSON text is read back as an equal value matches its
annotation; only the others are looked at in detail, to convert them or to find the wrong field. Pydantic (v2) models are
recognised by their methods; nothing imports pydantic.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from math import isfinite
from pathlib import PurePath
from typing import Any, get_args, get_origin
from uuid import UUID

import msgspec
from msgspec import inspect as shapes

from treadle.model.errors import InvalidPayload
from treadle.model.values import Encoded, Json, encoded, shown, storable, text_of, type_name

_NATIVE = (bytes, bytearray, datetime, date, time, timedelta, UUID, Decimal)
"""Types that JSON writes as text: while a value is checked, they are told apart from text."""
_NATIVE_SHAPES = (
    shapes.AnyType,
    shapes.BytesType,
    shapes.ByteArrayType,
    shapes.CustomType,
    shapes.DateType,
    shapes.DateTimeType,
    shapes.DecimalType,
    shapes.TimeDeltaType,
    shapes.TimeType,
    shapes.TypedDictType,
    shapes.UUIDType,
)
_OBJECTS = (shapes.DataclassType, shapes.DictType, shapes.StructType, shapes.TypedDictType)
_AT = re.compile(r"^(.*?)(?: - at (`key` in )?`(\$.*)`)?$", re.DOTALL)
_PART = re.compile(r"\.([^.\[]+)|\[(\d+|\.\.\.)\]")
_MISSING = re.compile(r"^Object missing required field `(.*)`$")
_UNKNOWN = re.compile(r"^Object contains unknown field `(.*)`$")
_EXPECTED = re.compile(r"^Expected `(.*)`, got `.*`$", re.DOTALL)
_SOME = "..."
"""Stands for an unnamed key in a path."""
_MAX_KEYS = 10_000
_SHOWN = 60


def is_raw(annotation: Any) -> bool:
    """Return whether the annotation allows any JSON (or any JSON object), which is passed as it is."""
    if annotation in (Any, object, dict, Mapping) or annotation is dict[str, Any]:
        return True
    if get_origin(annotation) in (dict, Mapping):
        key, value = get_args(annotation)
        return key is str and value in (Any, object)
    return False


def is_model(cls: Any) -> bool:
    """Return whether the class is a pydantic (v2) model."""
    return isinstance(cls, type) and hasattr(cls, "model_validate_json") and hasattr(cls, "model_dump_json")


class Converter:
    """Converts values of one type. Raises `TypeError` with the reason for a type whose values cannot be stored."""

    __slots__ = ("_quick", "_read", "_single", "_write_model", "annotation", "is_object")

    def __init__(self, annotation: Any) -> None:
        self.annotation = annotation
        shape = shapes.type_info(annotation)
        nested = list(_nested(shape, "", set()))
        for place, inner in nested:
            if isinstance(inner, shapes.CustomType) and not (issubclass(inner.cls, PurePath) or is_model(inner.cls)):
                raise TypeError(f"{place + ': ' if place else ''}a {inner.cls.__name__} cannot be stored as JSON")
            if isinstance(inner, shapes.RawType | shapes.ExtType):
                raise TypeError(f"{place + ': ' if place else ''}a {type(inner).__name__} cannot be stored as JSON")
        self._single = not any(isinstance(inner, _NATIVE_SHAPES) for _, inner in nested)
        self._quick = all(_compares_all(inner) for _, inner in nested)
        self._read = _reader(annotation)
        self._write_model = annotation.model_dump_json if is_model(annotation) else None
        self.is_object = _is_object(shape)

    def dump(self, value: Any) -> Json:
        """Return the value as JSON, which `load` is known to accept."""
        if (written := self._written(value)) is not None:
            return _decode(written)
        native: tuple[type, ...] = _NATIVE
        try:
            built = msgspec.to_builtins(value, builtin_types=native, str_keys=True, enc_hook=_dump_custom)
        except Exception:  # native types are not supported as keys
            built, native = plain(value), ()
        self._convert(built, native)
        return built if self._single else plain(value)

    def find_text(self, value: Any) -> Encoded | None:
        """Return the JSON text of a value that matches, if that is quickly known; else None: see `dump`."""
        written = self._written(value)
        return None if written is None else encoded(written)

    def _written(self, value: Any) -> str | None:
        """Return the JSON text of a value that surely matches; None for any other."""
        try:
            if (write := self._write_model) is None:
                if not self._quick:
                    return None
                text = _write(value)
                _check_json(text)  # pydantic may write NaN and Infinity
                return text.decode() if self._read(text) == value else None
            if type(value) is not self.annotation:
                return None
            written: str = write(value, by_alias=True, round_trip=True, warnings=False)
            loaded: Any = self._read(written)
            if "null" in written or "NaN" in written or "Infinity" in written:  # written for numbers that JSON does not have
                _check_json(written)
                return written if loaded == value or repr(loaded.model_dump()) == repr(value.model_dump()) else None
            return written
        except Exception:
            return None

    def load(self, value: Json) -> Any:
        """Return the stored JSON as a value of the type."""
        return self._convert(value, ())

    def find(self, text: str) -> Any:
        """Return the stored JSON text as a value of the type; None if it does not match, which `load` explains."""
        try:
            return self._read(text)
        except Exception:
            return None

    def _convert(self, value: Any, native: tuple[type, ...]) -> Any:
        try:
            return _converted(value, self.annotation, native)
        except Exception as error:
            raise InvalidPayload(self._explained(error, value, native)) from None

    def _explained(self, error: Exception, value: Any, native: tuple[type, ...]) -> str:
        """Return the path and the reason: `$.items[2].price: expected float, got "x"`."""
        inner = error.__cause__ if isinstance(error.__cause__, _Within) else error if isinstance(error, _Within) else None
        match = _AT.match(text_of(error, 2000))
        reason, in_key, path = match.groups() if match else (text_of(error, 2000), None, None)
        parts: list[Any] = [
            name or (_SOME if index == _SOME else int(index)) for name, index in _PART.findall(path or "") if name or index
        ]
        self._name_keys(parts, value, native)
        if inner is not None:
            parts += inner.path
            reason = inner.reason
        if (missing := _MISSING.match(reason)) is not None:
            return f"{_path(parts)}.{missing[1]}: missing"
        if (unknown := _UNKNOWN.match(reason)) is not None:
            return f"{_path(parts)}.{unknown[1]}: unknown field"
        if (expected := _EXPECTED.match(reason)) is not None:
            reason = f"expected {expected[1]}, got {_shown(_at(value, parts)) if not in_key else 'a different key'}"
        return f"{_path(parts)}: {reason[:1].lower()}{reason[1:]}"

    def _name_keys(self, parts: list[Any], value: Any, native: tuple[type, ...]) -> None:
        """Replace the unnamed keys of the path by the first keys whose values do not match."""
        for position, part in enumerate(parts):
            if part is not _SOME:
                continue
            container = _at(value, parts[:position])
            if not isinstance(container, dict) or len(container) > _MAX_KEYS:
                return
            for key, member in container.items():
                try:
                    _converted(_replaced(value, parts[:position], {key: member}), self.annotation, native)
                except Exception:
                    parts[position] = key
                    break


def plain(value: Any) -> Json:
    """Return any supported object as JSON, independent of annotations."""
    try:
        return msgspec.to_builtins(value, str_keys=True, enc_hook=_dump_custom)
    except Exception as error:
        raise InvalidPayload(f"$: {text_of(error, 500)}") from None


def plain_object(value: Any) -> Json:
    """Return an instance of a supported class as JSON; JSON itself, and everything else, as it is."""
    if value is None or isinstance(value, dict | list | str | int | float):
        return value
    supported = isinstance(value, (*_NATIVE, PurePath, tuple, set, frozenset)) or is_model(type(value))
    if supported or hasattr(type(value), "__dataclass_fields__") or hasattr(type(value), "__struct_fields__"):
        return plain(value)
    return value


class _Within(ValueError):
    """A mismatch inside a value that another library has checked."""

    def __init__(self, path: tuple[Any, ...], reason: str) -> None:
        super().__init__(reason)
        self.path, self.reason = path, reason


def _converted(value: Any, annotation: Any, native: tuple[type, ...]) -> Any:
    return msgspec.convert(value, annotation, builtin_types=native, str_keys=True, dec_hook=_load_custom)


def _compares_all(shape: Any) -> bool:
    """Return whether equal values of the type have equal fields: none is left out of the comparison, none compares itself."""
    cls: Any = getattr(shape, "cls", None)
    if isinstance(shape, shapes.StructType):
        return bool(cls.__struct_config__.eq) and cls.__eq__ is msgspec.Struct.__eq__
    if isinstance(shape, shapes.NamedTupleType):
        return cls.__eq__ is tuple.__eq__
    if isinstance(shape, shapes.DataclassType):
        generated = getattr(vars(cls).get("__eq__"), "__code__", None)
        return (
            generated is not None
            and generated.co_filename == "<string>"
            and all(field.compare for field in cls.__dataclass_fields__.values())
        )
    return not is_model(cls) or cls.__eq__.__module__ == "pydantic.main"


class Arguments(msgspec.Struct):
    """Base class of the arguments of one function by name, which are read as a dict of those that are given."""


def _reader(annotation: Any) -> Callable[[str | bytes], Any]:
    """Return the function that reads JSON text as a value of the type."""
    if is_model(annotation):
        reader: Callable[[str | bytes], Any] = annotation.model_validate_json
        return reader
    if not (isinstance(annotation, type) and issubclass(annotation, Arguments)):
        return msgspec.json.Decoder(annotation, dec_hook=_load_custom).decode
    fields = msgspec.structs.fields(annotation)
    models = [(field.name, field.type.model_validate_json) for field in fields if is_model(field.type)]
    shape: list[Any] = []
    for field in fields:
        kind = msgspec.Raw if is_model(field.type) else field.type
        shape.append((field.name, kind) if field.required else (field.name, kind, msgspec.UNSET))
    twin = msgspec.defstruct("Arguments", shape, forbid_unknown_fields=True, kw_only=True)
    decode, asdict = msgspec.json.Decoder(twin, dec_hook=_load_custom).decode, msgspec.structs.asdict

    def read(text: str | bytes) -> dict[str, Any]:
        values = {name: value for name, value in asdict(decode(text)).items() if value is not msgspec.UNSET}
        for name, load in models:
            if name in values:
                values[name] = load(bytes(values[name]))
        return values

    return read


def _write_custom(value: Any) -> Any:
    if is_model(type(value)):
        return msgspec.Raw(value.model_dump_json(by_alias=True, round_trip=True, warnings=False))
    return _dump_custom(value)


_decode = msgspec.json.Decoder().decode
_check_json = msgspec.json.Decoder(msgspec.Raw).decode
_write = msgspec.json.Encoder(enc_hook=_write_custom).encode


def _dump_custom(value: Any) -> Any:
    if isinstance(value, PurePath):
        return str(value)
    if is_model(type(value)):
        if not _is_finite(value.model_dump(round_trip=True, warnings=False)):  # pydantic may write null
            raise ValueError(f"{type_name(value)} contains NaN or an infinity, which JSON does not have")
        return value.model_dump(mode="json", by_alias=True, round_trip=True, warnings=False)
    raise TypeError(f"a {type_name(value)} cannot be stored as JSON")


def _is_finite(value: Any) -> bool:
    if isinstance(value, float):
        return isfinite(value)
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple | set | frozenset) else ()
    return all(map(_is_finite, parts))


def _load_custom(cls: type[Any], value: Any) -> Any:
    if isinstance(value, cls):
        return value
    if issubclass(cls, PurePath):
        if not isinstance(value, str):
            raise _Within((), f"Expected `path`, got `{type_name(value)}`")
        return cls(value)
    try:
        return cls.model_validate_json(msgspec.json.encode(value))
    except ValueError as error:
        first = error.errors(include_url=False)[0] if hasattr(error, "errors") else None
        if first is None:
            raise
        reason = storable(first["msg"], 500)
        if "input" in first and first.get("type") != "missing":
            reason += f", got {_shown(first['input'])}"
        raise _Within(tuple(first["loc"]), reason) from None


def _nested(shape: Any, place: str, seen: set[int]) -> Iterator[tuple[str, Any]]:
    """Yield the type and all types inside it, each with the name of the field that it was found at."""
    if id(shape) in seen:
        return
    seen.add(id(shape))
    if isinstance(shape, shapes.Metadata):
        yield from _nested(shape.type, place, seen)
        return
    yield place, shape
    for field in getattr(shape, "fields", ()):
        yield from _nested(field.type, f"{getattr(shape, 'cls', type(shape)).__name__}.{field.name}", seen)
    for part in ("item_type", "key_type", "value_type"):
        if (inner := getattr(shape, part, None)) is not None:
            if part == "key_type" and isinstance(inner, shapes.CustomType):
                raise TypeError(f"{place + ': ' if place else ''}a {inner.cls.__name__} cannot be the key of a JSON object")
            yield from _nested(inner, place, seen)
    for part in ("types", "item_types"):
        for inner in getattr(shape, part, ()):
            yield from _nested(inner, place, seen)


def _is_object(shape: Any) -> bool:
    if isinstance(shape, shapes.Metadata):
        return _is_object(shape.type)
    if isinstance(shape, shapes.UnionType):
        return all(_is_object(option) for option in shape.types if not isinstance(option, shapes.NoneType))
    if isinstance(shape, shapes.CustomType):
        return is_model(shape.cls) and not getattr(shape.cls, "__pydantic_root_model__", False)
    return isinstance(shape, _OBJECTS) and not getattr(shape, "array_like", False)


def _path(parts: list[Any]) -> str:
    return "$" + "".join(
        f"[{part}]" if isinstance(part, int) else f".{storable(str(part), _SHOWN)}" if part is not _SOME else "[...]"
        for part in parts
    )


def _at(value: Any, parts: list[Any]) -> Any:
    for part in parts:
        try:
            value = value[part]
        except Exception:
            return value
    return value


def _replaced(value: Any, parts: list[Any], part: Any) -> Any:
    """Return a copy of the value with another part at the path."""
    if not parts:
        return part
    copied = dict(value) if isinstance(value, dict) else list(value)
    copied[parts[0]] = _replaced(value[parts[0]], parts[1:], part)
    return copied


def _shown(value: Any) -> str:
    match value:
        case None | True | False:
            return {None: "null", True: "true", False: "false"}[value]
        case dict():
            return "an object"
        case list() | tuple():
            return "an array"
        case str():
            return f'"{storable(value, _SHOWN)}"'
        case _:
            return shown(value, _SHOWN)
