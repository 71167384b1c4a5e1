"""Sizes of values as JSON text, computed without writing it; elements of lists and maps count as at least eight bytes.

A part that occurs several times is measured once and counted each time, so a value that would be gigabytes of text is
detected while it is still a few lists that share their elements.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from treadle.evaluator.operators import EvaluationError
from treadle.evaluator.records import BlobRef, Limits, Value

_ELEMENT = 8
"""Bytes counted for each element in addition to its text: a list of a million numbers is not small."""
_PARTS = (list, dict)
_SCALARS = frozenset((str, int, float, bool, type(None)))


class Sizes:
    """The measured values of one call."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._known: dict[int, tuple[int, int, Value]] = {}
        """Size, depth and the value itself, which keeps its id in use, by id."""
        self.total = 0
        """Bytes of all values computed in this call."""

    def know(self, value: Value, size: int) -> None:
        """Take the size of a stored value from its reference; stored values were checked when they were made."""
        if isinstance(value, list | dict) and id(value) not in self._known:
            self._known[id(value)] = size, 1, value

    def of(self, value: Value) -> int:
        """Return the approximate number of bytes."""
        return self._measure(value)[0]

    def check(self, size: int, depth: int = 0) -> None:
        """Raise `EvaluationError` for a value that is too large or too deep."""
        limits = self._limits
        if size > limits.value_bytes:
            raise EvaluationError(f"the value would take {size} bytes; the limit is {limits.value_bytes}", "value_too_large")
        if depth > limits.value_depth:
            raise EvaluationError(f"the value is nested more than {limits.value_depth} deep", "value_too_large")

    def count(self, size: int) -> None:
        """Count the bytes of a value that this call computed; raise `EvaluationError` if they become too many."""
        self.total += size
        if self.total > self._limits.call_bytes:
            limit = self._limits.call_bytes
            raise EvaluationError(f"the run computes more than {limit} bytes of values at a time", "value_too_large")

    def checked(self, value: Value) -> Value:
        """Check and count a computed value, and return it."""
        size, depth = self._measure(value)
        self.check(size, depth)
        self.count(size)
        return value

    def check_sum(self, *values: Value) -> None:
        """Check and count the value that these ones will be joined to, before it exists."""
        size = sum(map(self.of, values))
        self.check(size)
        self.count(size)

    def _measure(self, value: Value) -> tuple[int, int]:
        """Return size and depth; without recursion, and each list or map only once."""
        if not isinstance(value, list | dict):
            return _scalar(value), 0
        known = self._known
        open_: list[Value] = [value]
        while open_:
            each = open_[-1]
            parts = each.values() if isinstance(each, dict) else each
            kinds = {*map(type, parts)}
            flat = kinds <= _SCALARS
            unknown = [] if flat else [part for part in parts if isinstance(part, _PARTS) and id(part) not in known]
            if unknown:
                open_ += unknown
                continue
            open_.pop()
            size, depth = 2 + _ELEMENT * len(each), 0
            if isinstance(each, dict):
                size += sum(map(len, each))
            if flat and len(kinds) == 1:
                size += _scalars(parts, *kinds)
                parts = ()
            for part in parts:
                if isinstance(part, _PARTS):
                    found = known[id(part)]
                    size, depth = size + found[0], max(depth, found[1])
                else:
                    size += _scalar(part)
            known[id(each)] = size, depth + 1, each
        size, depth, _ = known[id(value)]
        return size, depth


def _scalars(values: Collection[Any], kind: type) -> int:
    """The sum of `_scalar`, about as fast as the interpreter can count."""
    if kind is int:
        return len(values) + sum([bits // 3 for bits in map(int.bit_length, values)])
    if kind is str and all(map(str.isascii, values)):
        return 2 * len(values) + sum(map(len, values))
    return sum(map(_scalar, values)) if kind is str else 8 * len(values)


def _scalar(value: Value) -> int:
    if isinstance(value, str):
        return 2 + (len(value) if value.isascii() else len(value.encode("utf-8", "surrogatepass")))
    if isinstance(value, BlobRef):
        return value.size
    if isinstance(value, int) and not isinstance(value, bool):
        return 1 + value.bit_length() // 3
    return 8
