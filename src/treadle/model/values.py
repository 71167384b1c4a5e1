"""JSON values as the stores keep them: text that both stores accept and return unchanged (D12)."""

from __future__ import annotations

import gc
import json
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from math import isfinite
from typing import Any

import msgspec

from treadle.model.errors import InvalidPayload, PayloadTooLarge, TreadleError, UnreadableValue
from treadle.model.user_values import text_of

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
_FEW, _SHORT = 32, 1024
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
    """Whether the value is a small object of texts, numbers and booleans: the fast encoder writes that as any other would."""
    if type(value) is not dict or len(value) > _FEW:
        return False
    size = 0
    for key, part in value.items():
        kind = type(part)
        if type(key) is not str or not (kind in _FLAT or (kind is float and isfinite(part))):
            return False
        size += len(key) + (len(part) if kind is str else 0)
    return size <= _SHORT


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
                left = inside.pop()
                if limit >= MEASURED:
                    seen.add(id(left))
    return plain, deepest


def _decode_below(text: str | bytes | bytearray, frames: int) -> Json:
    """Decode the text below that many frames: a value that can only be read near the top of a stack is nested too deeply."""
    return _decode(text) if frames == 0 else _decode_below(text, frames - 1)


def decode(text: str | None) -> Json:
    """Decode JSON text made by `encode`; None for None. Raises `UnreadableValue` for any other text."""
    try:
        return None if text is None else _decode(text) if len(text) < _LARGE else _decode_large(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise UnreadableValue(f"A stored value cannot be read: {error}. It is damaged.") from None


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
    found = {} if text is None else decode(text)
    if not isinstance(found, dict):
        raise UnreadableValue(f"A stored value cannot be read: it is {text[:40] if text else text}, not an object. It is damaged.")
    return found


def decode_shown(text: str | None, reader: Callable[[str], Json] = decode_object) -> Json:
    """Decode the JSON text of an object for display; a damaged text is replaced by the reason."""
    try:
        return None if text is None else reader(text)
    except UnreadableValue as error:
        return unreadable_json(error)


def unreadable_json(error: TreadleError) -> dict[str, Json]:
    """Return the displayed form of a value that cannot be read."""
    return {UNREADABLE_MARK: error.code, "message": str(error)}
