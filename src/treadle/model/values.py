"""JSON values as the stores keep them: text that both stores take and give back alike (D12)."""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec

from treadle.model.errors import InvalidPayload, PayloadTooLarge

Json = Any
"""A JSON value: None, bool, int, float, str, list or dict of such. `Any` stops here."""


class BlobRef(msgspec.Struct, frozen=True, gc=False):
    """Stands for an attribute value that is stored elsewhere. Only whole attribute values are ever replaced by one."""

    digest: str
    size: int
    is_list: bool | None = None
    """Whether the value is a list, as far as is known: two lists that are yielded become one, so they are looked into."""


PAYLOAD_LIMIT = 1024 * 1024
"""Bytes of JSON text that one value may take, unless the settings say otherwise."""

_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"), check_circular=True)
_NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")
_quick = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


def encode(value: Json, what: str = "payload", limit: int = PAYLOAD_LIMIT) -> str:
    """The value as compact JSON text.

    Refuses with `InvalidPayload` what is not JSON and NaN, Infinity, U+0000 and lone surrogates, and with
    `PayloadTooLarge` what takes more than `limit` bytes.
    """
    try:
        text, size = _written(value)
    except UnicodeEncodeError:
        raise InvalidPayload(f"The {what} holds half of a surrogate pair, which is not text.") from None
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidPayload(f"The {what} is not JSON: {error}. Pass dicts, lists, strings, numbers, booleans and None.") from None
    if "\\u0000" in text and _NUL.search(text):
        raise InvalidPayload(f"The {what} holds the character U+0000, which PostgreSQL cannot store.")
    if size > limit:
        raise PayloadTooLarge(
            f"The {what} takes {size} bytes as JSON; the limit is {limit}. Store it elsewhere and pass a reference."
        )
    return text


def _written(value: Json) -> tuple[str, int]:
    """The text and its size in bytes. The quick encoder takes more than JSON; what reads back as the same was JSON."""
    try:
        written = _quick(value)
        if _decode(written) == value:
            return written.decode(), len(written)
    except (TypeError, ValueError, OverflowError, RecursionError):
        pass  # the other one says what is wrong with it
    text = _ENCODER.encode(value)
    return text, len(text) if text.isascii() else len(text.encode())


def decode(text: str | None) -> Json:
    """The value of JSON text that `encode` made; None for None."""
    return None if text is None else _decode(text)
