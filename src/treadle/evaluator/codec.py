"""Encodes rows as JSON text, with large attribute values moved out, and decodes them.

A value of more than `BLOB_LIMIT` bytes leaves the row; `refs` records its place and its digest, so no JSON from a user can be
mistaken for a reference.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import msgspec

from treadle.evaluator.records import BlobRef, StepRow, Value
from treadle.model.values import Json, encode

BLOB_LIMIT = 8 * 1024
_ANY_SIZE = 2**40
_FIELDS = ("params", "returns", "loop")
Put = Callable[[str, str], None]


class _Packed(msgspec.Struct, omit_defaults=True):
    row: StepRow
    refs: dict[str, dict[str, BlobRef]] = {}


def fold(value: Value, put: Put, limit: int = BLOB_LIMIT) -> Value:
    """Return the value, or a reference to it if it is large; `put(digest, text)` receives the text to store."""
    if isinstance(value, BlobRef) or value is None or isinstance(value, bool | int | float):
        return value
    text = encode(value, "value", limit=_ANY_SIZE)
    size = len(text) if text.isascii() else len(text.encode())
    if size <= limit:
        return value
    digest = hashlib.sha256(text.encode()).hexdigest()
    put(digest, text)
    return BlobRef(digest, size, isinstance(value, list))


def pack(row: StepRow, put: Put, limit: int = BLOB_LIMIT) -> bytes:
    """Encode the row as JSON text."""
    fields: dict[str, dict[str, Json]] = {}
    refs: dict[str, dict[str, BlobRef]] = {}
    for field in _FIELDS:
        values: dict[str, Any] = getattr(row, field)
        folded = {name: fold(value, put, limit) for name, value in values.items()}
        moved = {name: value for name, value in folded.items() if isinstance(value, BlobRef)}
        if moved:
            refs[field] = moved
        fields[field] = {name: value for name, value in folded.items() if name not in moved}
    return msgspec.json.encode(_Packed(msgspec.structs.replace(row, **fields), refs))


def unpack(text: bytes) -> StepRow:
    """Decode the output of `pack`, with references for values that were moved out."""
    packed = _decoder.decode(text)
    for field, moved in packed.refs.items():
        setattr(packed.row, field, {**getattr(packed.row, field), **moved})
    return packed.row


_decoder = msgspec.json.Decoder(_Packed)
