"""Tags: search attributes of runs and tasks, `customer=acme`. A value is text, a number, true or false, or a time.

Text in the form of an instant with a zone (`2026-11-01T09:00:00Z`) is a time. Stores keep a value as one text whose order is that
of the values of its type: `n` and 16 hex digits for a number, `t` and 16 digits for a time, `b0`, `b1`, and `s` before a text.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from treadle.model.clock import LATEST_AT, as_text
from treadle.model.errors import InvalidTag
from treadle.model.values import shown

TagValue = str | int | float | bool | datetime
"""The value of a tag, as callers pass it."""
Tags = Mapping[str, TagValue]

TAGS_LIMIT = 20
"""Limit on the tags of one call; a run or task keeps up to `KEPT_LIMIT`."""
KEPT_LIMIT = 64
TEXT_LIMIT = 256
_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}")
_INSTANT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d(:\d\d(\.\d{1,6})?)?(Z|[+-]\d\d:\d\d)")
_EXACT = 2**53


class KeptTags(dict[str, TagValue]):
    """All tags of a run, for one that repeats or continues it: as many as it keeps."""


def check_tags(given: Tags | None) -> dict[str, str]:
    """Return the tags in stored form, or raise `InvalidTag`."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise InvalidTag(f"tags must be a dict like {{'customer': 'acme'}}, not {shown(given)}.")
    if len(given) > TAGS_LIMIT and not isinstance(given, KeptTags):
        raise InvalidTag(f"Give at most {TAGS_LIMIT} tags; {len(given)} were given.")
    return {check_tag_key(key): encode_tag(value, key) for key, value in given.items()}


def check_tag_key(key: Any) -> str:
    """Return the key of a tag, or raise `InvalidTag`."""
    if not isinstance(key, str) or _KEY.fullmatch(key) is None:
        raise InvalidTag(
            f"{shown(key)} cannot be the key of a tag: use up to 64 letters, digits, dots, dashes and underscores, starting with "
            "a letter or an underscore."
        )
    return key


def encode_tag(value: Any, key: str = "tag") -> str:
    """Return the stored form of a value, or raise `InvalidTag`."""
    match value:
        case bool():
            return f"b{int(value)}"
        case int() | float() if math.isfinite(value) and abs(value) <= _EXACT:
            (bits,) = struct.unpack(">Q", struct.pack(">d", value + 0.0))  # + 0.0 makes -0.0 equal to 0.0
            return f"n{bits ^ 0xFFFF_FFFF_FFFF_FFFF if bits >> 63 else bits | 1 << 63:016x}"
        case datetime() if value.tzinfo is not None and 0 <= value.timestamp() * 1000 < LATEST_AT:
            return encode_time(round(value.timestamp() * 1000))
        case str() if len(value) <= TEXT_LIMIT and "\0" not in value and not _surrogates(value):
            return encode_time(at) if (at := time_in(value)) is not None else f"s{value}"
    raise InvalidTag(
        f"The tag {key} cannot be {shown(value)}: a value is text of up to {TEXT_LIMIT} characters, a number up to 2**53, true or "
        "false, or a time with a zone."
    )


def encode_time(at: int) -> str:
    """Return the stored form of an instant in milliseconds."""
    return f"t{at:016d}"


def decode_tag(stored: str) -> str | int | float | bool:
    """Return the value of a stored form as JSON has it: a time is text. A damaged form is returned as it is."""
    try:
        return _decode(stored[:1], stored[1:])
    except (ValueError, OverflowError):
        return stored


def _decode(kind: str, text: str) -> str | int | float | bool:
    if kind == "b":
        return text == "1"
    if kind == "t":
        return as_text(int(text)) or ""
    if kind == "n":
        bits = int(text, 16)
        bits = bits ^ 1 << 63 if bits >> 63 else bits ^ 0xFFFF_FFFF_FFFF_FFFF
        (number,) = struct.unpack(">d", struct.pack(">Q", bits))
        return int(number) if number.is_integer() else number
    return text


def decode_tags(stored: Mapping[str, str]) -> dict[str, str | int | float | bool]:
    """Return tags as JSON has them, by key."""
    return {key: decode_tag(value) for key, value in sorted(stored.items())}


def time_in(text: str) -> int | None:
    """Return the instant that the text is, in milliseconds; None for any other text."""
    if _INSTANT.fullmatch(text) is None:
        return None
    try:
        at = round(datetime.fromisoformat(text).timestamp() * 1000)
    except (ValueError, OverflowError):
        return None
    return at if 0 <= at < LATEST_AT else None


def _surrogates(text: str) -> bool:
    return any("\ud800" <= character <= "\udfff" for character in text)
