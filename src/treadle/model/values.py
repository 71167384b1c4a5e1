"""JSON values as the stores keep them: text that both stores accept and return unchanged (D12)."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
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

_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"), check_circular=True)
_CAUSE_LIMIT = 500
_SURELY_FLAT = 100
"""Number of lists and objects below which a value cannot be nested too deeply."""
_HEADROOM = 200
"""Stack frames that the decoder must be able to spare for the code around it and for the objects that enclose the value."""
_NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")
_quick = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


def encode(value: Json, what: str = "payload", limit: int = PAYLOAD_LIMIT) -> str:
    """Return the value as compact JSON text.

    Raises `InvalidPayload` for values that are not JSON and for NaN, Infinity, U+0000 and lone surrogates, and
    `PayloadTooLarge` for text of more than `limit` bytes.
    """
    try:
        text, size = _written(value)
    except UnicodeEncodeError:
        raise InvalidPayload(f"The {what} contains a lone surrogate, which is not valid text.") from None
    except Exception as error:  # methods of the value's types may raise anything
        raise InvalidPayload(
            f"The {what} is not JSON: {text_of(error, _CAUSE_LIMIT)}. Pass dicts, lists, strings, numbers, booleans and None."
        ) from None
    if "\\u0000" in text and _NUL.search(text):
        raise InvalidPayload(f"The {what} contains the character U+0000, which PostgreSQL cannot store.")
    if size > limit:
        raise PayloadTooLarge(
            f"The {what} takes {size} bytes as JSON; the limit is {limit}. Store it elsewhere and pass a reference."
        )
    return text


def _written(value: Json) -> tuple[str, int]:
    """Return the text and its size in bytes. The fast encoder accepts more than JSON; a value that round-trips was JSON."""
    try:
        written = _quick(value)
        if _decode(written) == value:
            if written.count(b"[") + written.count(b"{") > _SURELY_FLAT:
                _decode_below(written, _HEADROOM)
            return written.decode(), len(written)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except Exception:  # noqa: S110 - the strict encoder below reports the problem
        pass
    text = _ENCODER.encode(value)
    _decode_below(text, _HEADROOM)
    return text, len(text) if text.isascii() else len(text.encode())


def _decode_below(text: str | bytes, frames: int) -> Json:
    """Decode the text below that many frames: a value that can only be read near the top of a stack is nested too deeply."""
    return _decode(text) if frames == 0 else _decode_below(text, frames - 1)


def decode(text: str | None) -> Json:
    """Decode JSON text made by `encode`; None for None. Raises `UnreadableValue` for any other text."""
    try:
        return None if text is None else _decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise UnreadableValue(f"A stored value cannot be read: {error}. It is damaged.") from None


UNREADABLE_MARK = "@unreadable"
"""The key of an object that is displayed in place of a value that cannot be read."""


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
