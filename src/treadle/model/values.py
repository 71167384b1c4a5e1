"""JSON values as the stores keep them, and values of user code in a form that can be stored and displayed.

Texts of JSON are accepted and returned unchanged by both stores (D12). Objects of user code may have methods that raise, text may
contain characters that a store refuses, and numbers and texts may be instances of subclasses that an encoder refuses: `storable`,
`shown` and the like return plain types and never raise (D70).
"""

from __future__ import annotations

import gc
import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from math import isfinite
from types import CodeType, MethodType
from typing import Any

import msgspec

from treadle.model.errors import (
    InvalidPayload,
    NonRetryable,
    PayloadTooLarge,
    RunFailed,
    StepFailed,
    TaskFailed,
    TreadleError,
    UnreadableValue,
)

TEXT_LIMIT = 64 * 1024
"""Characters of a stored text, such as an error message."""
CODE_LIMIT = 200
"""Characters of an error code or a type name."""

_NAME: Any = type.__dict__["__name__"]
_MODULE: Any = type.__dict__["__module__"]
_QUALNAME: Any = type.__dict__["__qualname__"]


def type_name(value: object) -> str:
    """Return the name of the value's type, without consulting its metaclass."""
    return storable(_NAME.__get__(type(value)), CODE_LIMIT)


def class_name(kind: type) -> str:
    """Return the qualified name of a class, such as `builtins.ValueError`, without consulting its metaclass."""
    return storable(f"{_MODULE.__get__(kind)}.{_QUALNAME.__get__(kind)}", CODE_LIMIT)


def storable(text: str, limit: int = TEXT_LIMIT) -> str:
    """Return the text as a plain `str` that both stores accept, cut to the limit."""
    plain = str.__str__(text)[:limit].replace("\x00", "\\0")
    return plain if plain.isascii() else plain.encode("utf-8", "replace").decode()


def text_of(value: object, limit: int = TEXT_LIMIT) -> str:
    """Return `str(value)` as storable text, or a placeholder if that raises."""
    try:
        return storable(str(value), limit)
    except BaseException as error:
        return f"<{type_name(value)} whose __str__ raised {type_name(error)}>"


def shown(value: object, limit: int = 200) -> str:
    """Return `repr(value)` for a message, or a placeholder if that raises."""
    try:
        return storable(repr(value), limit)
    except BaseException as error:
        return f"<{type_name(value)} whose __repr__ raised {type_name(error)}>"


def number_of(value: object) -> int | float | None:
    """Return the value as a plain number; None if it is not one. A bool is not a number."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return int.__int__(value)
    return float.__float__(value) if isinstance(value, float) else None


def code_of(code: object, default: str) -> str:
    """Return an error code as storable text, or the default for a value that is not text."""
    return storable(code, CODE_LIMIT) if isinstance(code, str) and len(code) else default


def error_text(error: BaseException) -> str:
    """Return the message of an exception, or the name of its type if it has none."""
    return text_of(error) or type_name(error)


def error_code(error: BaseException, default: str) -> str:
    """Return the code of an exception of Treadle's own types, or the default."""
    if not isinstance(error, TreadleError):
        return default
    if isinstance(error, StepFailed | TaskFailed | RunFailed):
        return type(error).code  # of the report, not of the user's exception that it may be, too
    fixed = isinstance(error, NonRetryable)
    try:
        code = error.error_code if isinstance(error, NonRetryable) else error.code
    except Exception:
        code = ""
    return code_of(code, NonRetryable.code if fixed else default)


Json = Any
"""A JSON value: None, bool, int, float, str, list or dict of such. `Any` stops here."""


class BlobRef(msgspec.Struct, frozen=True, gc=False):
    """A placeholder for an attribute value stored elsewhere. Only whole attribute values are ever replaced by one."""

    digest: str
    size: int
    is_list: bool | None = None
    """Whether the value is a list, if known: lists from several yields are concatenated, so they have to be loaded."""


PAYLOAD_LIMIT = 1024 * 1024
"""Default limit in bytes on the JSON text of one value."""

MEASURED = 2**40
"""Limit for values of JSON's own types, whose size and depth were checked when they were computed."""

_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"), check_circular=True)
_CAUSE_LIMIT = 500
_SURELY_FLAT = 100
"""Number of lists and objects below which a value cannot be nested too deeply."""
_DEEPEST = 1000
"""Lists and objects within each other that no decoder reads."""
_HEADROOM = 200
"""Stack frames that the decoder must be able to spare for the code around it and for the objects that enclose the value."""
_PARTS, _PLAIN = (dict, list, tuple), frozenset((dict, list))
_FLAT = frozenset((str, int, bool, type(None)))
_SMALL = 4 * 1024
"""Bytes of a usual value, and by which its text may be longer than its limit before it is given up."""
_MAX_FLAT_KEYS, _MAX_FLAT_TEXT = 32, 1024
"""Keys of a small object, and characters in them and in its texts."""
_LARGE = 256 * 1024
_ROOM = 64 * 1024 * 1024
"""Bytes that are reserved for one text; a larger one is measured first."""
_NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")
_quick, _quick_into = msgspec.json.Encoder().encode, msgspec.json.Encoder().encode_into
_decode = msgspec.json.Decoder().decode


class Encoded(str):
    """A JSON object as text that `encode` returns as it is."""

    __slots__ = ()


def encoded(written: str) -> Encoded | None:
    """Return text that a JSON encoder has written; None if its value may be nested too deeply."""
    if len(written) > _SURELY_FLAT and written.count("[") + written.count("{") > _SURELY_FLAT:
        return None
    return Encoded(written)


def encode(value: Json, what: str = "payload", limit: int = PAYLOAD_LIMIT) -> str:
    """Return the value as compact JSON text.

    Raises `InvalidPayload` for values that are not JSON and for NaN, Infinity, U+0000 and lone surrogates, and
    `PayloadTooLarge` for text of more than `limit` bytes, of which not much more than the limit is ever written: parts that occur
    several times count each time.
    """
    try:
        if type(value) is Encoded:
            text = str(value)
            size = len(text) if text.isascii() else len(text.encode())
        else:
            text, size = _written(value, what, limit)
    except PayloadTooLarge:
        raise
    except UnicodeEncodeError:
        raise InvalidPayload(f"The {what} contains a lone surrogate, which is not valid text.") from None
    except Exception as error:  # methods of the value's types may raise anything
        raise InvalidPayload(
            f"The {what} is not JSON: {text_of(error, _CAUSE_LIMIT)}. Pass dicts, lists, strings, numbers, booleans and None."
        ) from None
    if "\\u0000" in text and _NUL.search(text):
        raise InvalidPayload(f"The {what} contains the character U+0000, which PostgreSQL cannot store.")
    if size > limit:
        raise _too_large(what, str(size), limit)
    return text


def _too_large(what: str, size: str, limit: int) -> PayloadTooLarge:
    return PayloadTooLarge(f"The {what} takes {size} bytes as JSON; the limit is {limit}. Store it elsewhere and pass a reference.")


def _written(value: Json, what: str, limit: int) -> tuple[str, int]:
    """Return the text and its size in bytes. The fast encoder accepts more than JSON; a value that round-trips was JSON."""
    if limit >= MEASURED or _is_flat(value):
        try:
            written = _quick(value)
            if limit < MEASURED or b"null" not in written:  # which may have been a NaN
                return written.decode(), len(written)
        except (UnicodeEncodeError, OverflowError):
            pass  # the strict encoder below reports the problem
    try:
        for room in _rooms(limit):
            buffer = bytearray(room)
            try:
                with memoryview(buffer):  # keeps the buffer from growing
                    _quick_into(value, buffer)
            except BufferError:
                continue
            if _decode(buffer) == value:
                if buffer.count(b"[") + buffer.count(b"{") > _SURELY_FLAT:
                    _decode_below(buffer, _HEADROOM)
                return buffer.decode(), len(buffer)
            break
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except Exception:  # noqa: S110 - the strict encoder below reports the problem
        pass
    plain, depth = _measured(value, what, limit)
    if plain:
        with suppress(UnicodeEncodeError, OverflowError):
            written = _quick(value)
            if depth > _SURELY_FLAT:
                _decode_below(written, _HEADROOM)
            return written.decode(), len(written)
    text = _ENCODER.encode(value)
    _decode_below(text, _HEADROOM)
    return text, len(text) if text.isascii() else len(text.encode())


def _rooms(limit: int) -> Iterator[int]:
    """Yield the sizes of buffers to try: small ones first, because a buffer is filled with zeros before it is used."""
    room = _SMALL
    while room < limit <= _ROOM:
        yield room
        room *= 16
    yield limit + _SMALL if limit <= _ROOM else _SMALL


def _is_flat(value: Json) -> bool:
    """Whether the value is null, or a small object of texts, numbers and booleans: every encoder writes these alike."""
    if type(value) is not dict or len(value) > _MAX_FLAT_KEYS:
        return value is None
    size = 0
    for key, part in value.items():
        kind = type(part)
        if type(key) is not str or not (kind in _FLAT or (kind is float and isfinite(part))):
            return False
        size += len(key) + (len(part) if kind is str else 0)
    return size <= _MAX_FLAT_TEXT


def _measured(value: Json, what: str, limit: int) -> tuple[bool, int]:
    """Whether all parts are of JSON's own types, and how deep they are; raise `PayloadTooLarge` if they are surely too large.

    Looks at each occurrence of a part, in the order of the encoders, and stops at the limit.
    """
    size, plain, deepest = 0, True, 0
    open_: list[Iterator[Json]] = [iter((value,))]
    inside: list[Json] = []
    seen: set[int] = set()
    while open_:
        for part in open_[-1]:
            if nested := isinstance(part, _PARTS):
                size += 1 + len(part)
                plain = plain and type(part) in _PLAIN
                if isinstance(part, dict) and (size <= limit or limit >= MEASURED):
                    size += len(part)
                    for key in part:
                        plain = plain and type(key) is str
                        size += 2 + str.__len__(key) if isinstance(key, str) else 0
            elif isinstance(part, str):
                size += 2 + str.__len__(part)
                plain = plain and type(part) is str
            else:
                size += 1
                plain = plain and (type(part) in _FLAT or (type(part) is float and isfinite(part)))
            if size > limit and limit < MEASURED:
                raise _too_large(what, f"at least {size}", limit)
            if nested and limit >= MEASURED and (id(part) in seen or (type(part) is list and {*map(type, part)} <= _FLAT)):
                deepest = max(deepest, len(inside) + 1)
            elif nested:
                inside.append(part)
                deepest = max(deepest, len(inside))
                if deepest > _DEEPEST:
                    raise ValueError("it contains itself" if len({*map(id, inside)}) < deepest else "it is nested too deeply")
                open_.append(iter(part.values() if isinstance(part, dict) else part))
                break
        else:
            open_.pop()
            if inside:
                finished = inside.pop()
                if limit >= MEASURED:
                    seen.add(id(finished))
    return plain, deepest


def _decode_below(text: str | bytes | bytearray, frames: int) -> Json:
    """Decode the text below that many frames: a value that can only be read near the top of a stack is nested too deeply."""
    return _decode(text) if frames == 0 else _decode_below(text, frames - 1)


def decode(text: str | None) -> Json:
    """Decode JSON text made by `encode`; None for None. Raises `UnreadableValue` for any other text."""
    try:
        return None if text is None else _decode(text) if len(text) < _LARGE else _decode_large(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        if text is not None and text.startswith(CODEC_MARK):
            raise foreign_value(text) from None
        raise UnreadableValue(f"A stored value cannot be read: {error}. It is damaged.") from None


CODEC_MARK = "@code:"
"""The start of a text that a codec has encoded; the codec's name and a colon follow."""


def foreign_value(text: str) -> UnreadableValue:
    """Return the error for a text that was encoded with a codec that this process does not have."""
    name = text.removeprefix(CODEC_MARK).partition(":")[0]
    return UnreadableValue(f"A value was stored with the codec {name!r}; give the engine that codec to read it.")


UNREADABLE_MARK = "@unreadable"
"""The key of an object that is displayed in place of a value that cannot be read."""


def _decode_large(text: str) -> Json:
    """Decode without the garbage collector, which would look through the new lists and objects again and again."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        return _decode(text)
    finally:
        if enabled:
            gc.enable()


def decode_object(text: str | None) -> dict[str, Json]:
    """Decode the JSON text of an object; {} for None. Raises `UnreadableValue` for any other text."""
    decoded = {} if text is None else decode(text)
    if not isinstance(decoded, dict):
        raise UnreadableValue(f"A stored value cannot be read: it is {text[:40] if text else text}, not an object. It is damaged.")
    return decoded


def decode_or_error(text: str | None) -> dict[str, Json]:
    """Decode the JSON text of an object; {} for None. A text that cannot be read is replaced by an error that states the reason."""
    try:
        return decode_object(text)
    except UnreadableValue as error:
        return {"code": error.code, "message": str(error)}


def decode_error(text: str | None) -> dict[str, Json]:
    """Decode a stored error as `decode_or_error` does; its code and message are text."""
    error = decode_or_error(text)
    if all(isinstance(error.get(name), str | None) for name in ("code", "message")):
        return error
    return {
        "code": UnreadableValue.code,
        "message": "A stored error cannot be read: its code or message is not text. It is damaged.",
    }


def decode_shown(text: str | None, reader: Callable[[str], Json] = decode_object) -> Json:
    """Decode the JSON text of an object for display; a damaged text is replaced by the reason."""
    try:
        return None if text is None else reader(text)
    except UnreadableValue as error:
        return unreadable_json(error)


def unreadable_json(error: TreadleError) -> dict[str, Json]:
    """Return the displayed form of a value that cannot be read."""
    return {UNREADABLE_MARK: error.code, "message": str(error)}


LINE_LIMIT = 120
"""Characters of the line."""
_PART_LIMIT, _SHOWN_MEMBERS, _SHOWN_ARGUMENTS = 48, 4, 12
_SECRET = re.compile(r"passw|secret|token|credential|api_?key|private_?key|authori[sz]ation|cookie", re.IGNORECASE)


def arguments_text(values: Mapping[str, object]) -> str:
    """Return `name = value, ...`, shortened; large values appear by their size, and values with names of secrets as `***`."""
    parts: list[str] = []
    length = 0
    for number, (name, value) in enumerate(values.items()):
        part = f"{_cut(name, _PART_LIMIT)} = {'***' if _SECRET.search(name) else _part_text(value)}"
        length += len(part) + 2
        if number == _SHOWN_ARGUMENTS or (parts and length > LINE_LIMIT):
            return _cut(storable(", ".join([*parts, "…"])), LINE_LIMIT + 3)
        parts.append(_cut(part, LINE_LIMIT))
    return _cut(storable(", ".join(parts)), LINE_LIMIT + 3)


def call_text(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """Return the arguments of a call in one line, with the names of the function's parameters as far as they are known.

    Never raises: objects of user code that cannot be described are left out.
    """
    if not args and not kwargs:
        return ""
    try:
        code = getattr(fn, "__code__", None)
        names = code.co_varnames[: code.co_argcount] if isinstance(code, CodeType) else ()
        first = 1 if isinstance(fn, MethodType) else 0
        named = {names[at] if at < len(names) else f"#{at - first + 1}": value for at, value in enumerate(args, first)}
        return arguments_text(named | kwargs)
    except Exception:
        return ""


def _part_text(value: object, depth: int = 0) -> str:
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, str):
        return json.dumps(_cut(value, _PART_LIMIT), ensure_ascii=False)
    if (number := number_of(value)) is not None:
        return _cut(repr(number), _PART_LIMIT) if not isinstance(number, int) or number.bit_length() < 128 else "a large number"
    if isinstance(value, BlobRef):
        return f"({'list' if value.is_list else 'value'} of {value.size // 1024} KiB)"
    if type(value) in (list, tuple):
        return _list_text(value, depth)  # type: ignore[arg-type]
    if type(value) is dict:
        return _dict_text(value, depth)
    return f"<{type_name(value)}>"


def _list_text(value: list[object] | tuple[object, ...], depth: int) -> str:
    if depth or len(value) > _SHOWN_MEMBERS:
        return f"[{len(value)} items]" if len(value) != 1 else "[1 item]"
    return f"[{', '.join(_part_text(member, depth + 1) for member in value)}]"


def _dict_text(value: dict[object, object], depth: int) -> str:
    if depth:
        return "{…}" if value else "{}"
    parts = []
    for name, member in list(value.items())[:_SHOWN_MEMBERS]:
        key = name if isinstance(name, str) else type_name(name)
        parts.append(f"{_cut(key, 24)}: {'***' if _SECRET.search(key) else _part_text(member, depth + 1)}")
    return f"{{{', '.join([*parts, '…'] if len(value) > _SHOWN_MEMBERS else parts)}}}"


def _cut(text: str, limit: int) -> str:
    plain = str.__str__(text)
    return plain if len(plain) <= limit else f"{plain[: limit - 1]}…"
