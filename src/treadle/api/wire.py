"""Records of the contract as JSON, and back: the one place where both ends of the wire agree on how they look."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Self

import msgspec

from treadle.model.clock import as_text


class Instant(datetime):
    """An instant in UTC, in whole milliseconds; as JSON it is RFC 3339 with three digits of a second."""

    @classmethod
    def of(cls, at: int) -> Self:
        """The instant of so many milliseconds since 1970."""
        return cls.fromtimestamp(at / 1000, UTC)

    @property
    def ms(self) -> int:
        """Milliseconds since 1970."""
        return round(self.timestamp() * 1000)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        """For documents made by pydantic it is what every datetime is."""
        return handler.generate_schema(datetime)


def _plain(value: Any) -> Any:
    if isinstance(value, Instant):
        return as_text(value.ms)
    raise NotImplementedError(f"Objects of type {type(value)} do not go over the wire.")


def _typed(kind: type, value: Any) -> Any:
    if kind is Instant and isinstance(value, str):
        return Instant.fromisoformat(value)
    raise NotImplementedError(f"Objects of type {kind} do not come over the wire.")


_encoder = msgspec.json.Encoder(enc_hook=_plain)


def to_json(record: Any) -> bytes:
    """A record of the contract as JSON."""
    return _encoder.encode(record)


def to_builtins(record: Any) -> Any:
    """A record of the contract as dicts, lists and text; bytes stay bytes, as they are no JSON."""
    return msgspec.to_builtins(record, enc_hook=_plain, builtin_types=(bytes, bytearray, memoryview))


def from_json(body: bytes, kind: Any) -> Any:
    """The record of that type that the JSON is; raises `msgspec.DecodeError`."""
    return msgspec.json.decode(body, type=kind, dec_hook=_typed)


def from_builtins(value: Any, kind: Any) -> Any:
    """The record of that type that dicts, lists and text make; raises `msgspec.ValidationError`."""
    return msgspec.convert(value, type=kind, dec_hook=_typed)
