"""Ids and randomness that repeat on every run of a test."""

from __future__ import annotations

import random

from treadle.model.clock import Clock
from treadle.model.ids import uuid7
from treadle.testing.clock import START_AT


class SeededIds:
    """Implements `treadle.model.ids.Ids`: the same seed produces the same ids, in sorted order.

    Each id is at least a millisecond after the previous one, and not before `clock`, if there is one.
    """

    def __init__(self, seed: int = 0, clock: Clock | None = None) -> None:
        self._random = random.Random(seed)
        self._clock = clock
        self._at = START_AT - 1

    def new_id(self) -> str:
        """Return the next UUIDv7 of the seed."""
        self._at = max(self._at + 1, self._clock.now() if self._clock else 0)
        return uuid7(self._at, self._random.randbytes(10))

    def random(self) -> float:
        """Return the next number in [0, 1) of the seed."""
        return self._random.random()

    def secret(self) -> bytes:
        """Return the next 32 bytes of the seed; they are not secret."""
        return self._random.randbytes(32)
