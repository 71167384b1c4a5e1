"""Ids sort by time (UUIDv7); everything that a run creates has an id derived from the run and the position in it (D11)."""

from __future__ import annotations

import hashlib
import re
import uuid
from typing import Protocol

from treadle.model.errors import InvalidInput
from treadle.model.values import shown


class Identified(Protocol):
    """A record with an id, such as the return value of the call that created it."""

    @property
    def id(self) -> str: ...


Ref = str | Identified
"""Names one task or run: its id, or a record that has it."""


class Ids(Protocol):
    """The only source of new ids and of randomness; simulation and tests supply their own."""

    def new_id(self) -> str:
        """Return a new, unique UUIDv7."""

    def random(self) -> float:
        """Return a number in [0, 1), for jitter."""

    def secret(self) -> bytes:
        """Return 32 unguessable bytes."""


_VARIANTS = {digit: "89ab"[int(digit, 16) & 3] for digit in "0123456789abcdef"}
"""The digit of a UUID with the variant, for a digit of entropy."""

_CANONICAL = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")


def uuid7(at: int, entropy: bytes) -> str:
    """Build the UUIDv7 of an instant (ms) and ten bytes of entropy; it sorts by instant, then by entropy."""
    time, text = f"{at & 0xFFFF_FFFF_FFFF:012x}", entropy.hex()
    return f"{time[:8]}-{time[8:]}-7{text[1:4]}-{_VARIANTS[text[4]]}{text[5:8]}-{text[8:20]}"


def id_time(of_id: str) -> int:
    """Return the instant (ms) in a UUIDv7."""
    return int(of_id[:8] + of_id[9:13], 16)


def derived_id(parent_id: str, place: str) -> str:
    """Derive the id of the entity that `parent_id` creates at `place`: the same each time, next to its parent in every index."""
    text = hashlib.sha256(f"{parent_id}/{place}".encode()).hexdigest()
    return f"{parent_id[:13]}-7{text[1:4]}-{_VARIANTS[text[4]]}{text[5:8]}-{text[8:20]}"


def is_canonical(text: str) -> bool:
    """Whether the text is an id in its canonical spelling."""
    return _CANONICAL.fullmatch(text) is not None


def parse_id(named: Ref, what: str = "id") -> str:
    """Return the id in its canonical spelling, or raise `InvalidInput`."""
    if type(named) is str and _CANONICAL.fullmatch(named) is not None:
        return named
    try:
        return str(uuid.UUID(named if isinstance(named, str) else named.id))
    except (ValueError, AttributeError, TypeError):
        raise InvalidInput(f"{shown(named)} is not a valid {what}; ids look like 0198c3de-7a10-7c3e-b2a4-5d1f0c9e8a77.") from None
