"""Operators and functions on JSON values: total, bounded, with a readable error for operands that do not fit.

Sizes of values are those of JSON text, computed without writing it; elements of lists and maps count as at least eight bytes.
A part that occurs several times is measured once and counted each time, so a value that would be gigabytes of text is
detected while it is still a few lists that share their elements.
"""

from __future__ import annotations

import json
import math
import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import chain
from typing import Any

from treadle.evaluator.records import BlobRef, Limits, Value
from treadle.model.values import Json

MAX_INTEGER_BITS = 4_096
"""Maximum size of integers in bits."""
MESSAGE_LIMIT = 2_000
"""Characters of an error message, which may quote a value."""


class EvaluationError(Exception):
    """An expression has no value; the message has the reason, and `catch` sees `type` as the error's type."""

    def __init__(self, message: str, kind: str = "evaluation_error") -> None:
        message = message if len(message) <= MESSAGE_LIMIT else f"{message[:MESSAGE_LIMIT]}..."
        super().__init__(message)
        self.message, self.type = message, kind

    def within(self, what: str) -> EvaluationError:
        """Return the same error, prefixed with its place."""
        return EvaluationError(f"{what}: {self.message}", self.type)


_KINDS = {type(None): "null", bool: "a Boolean", int: "a number", float: "a number", str: "a text", list: "a list"}


def describe(value: Json) -> str:
    """Return the kind of a value, with an article."""
    return _KINDS.get(type(value), "a map")


def text(value: Json) -> str:
    """Return the text that `++` produces: null is empty, containers are JSON."""
    match value:
        case None:
            return ""
        case bool():
            return "true" if value else "false"
        case str():
            return value
        case int() | float():
            return str(value)
    try:
        return json.dumps(value, ensure_ascii=False)
    except RecursionError:
        raise EvaluationError("the value is nested too deeply to be written as text") from None


def concat(values: Sequence[Json]) -> str:
    """`a ++ b ++ c`."""
    return "".join([text(value) for value in values])


def is_number(value: Json) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def negate(value: Json) -> Json:
    """`-a`."""
    if not is_number(value):
        raise EvaluationError(f"operator `-` needs a number, this is {describe(value)}")
    return -value


def boolean(value: Json, what: str) -> bool:
    """Return the value, which must be a Boolean."""
    if not isinstance(value, bool):
        raise EvaluationError(f"{what} needs a Boolean, this is {describe(value)}")
    return value


_ARITHMETIC: Mapping[str, Callable[[Any, Any], Any]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv, "%": operator.mod,
}  # fmt: skip
_ORDER: Mapping[str, Callable[[Any, Any], bool]] = {"<": operator.lt, ">": operator.gt, "<=": operator.le, ">=": operator.ge}


def binary(sign: str, left: Json, right: Json) -> Json:
    """Apply any binary operator except `&&` and `||`, which do not always evaluate their right side."""
    if sign in _ARITHMETIC:
        return _arithmetic(sign, left, right)
    if sign in _ORDER:
        if not (isinstance(left, str) and isinstance(right, str)) and not (is_number(left) and is_number(right)):
            raise _mismatch(sign, "two numbers or two texts", left, right)
        return _ORDER[sign](left, right)
    match sign:
        case "==" | "!=":
            return equal(left, right) is (sign == "==")
        case "in" | "not in":
            return _contains(sign, right, left) is (sign == "in")
        case "contains":
            return _contains(sign, left, right)
        case "startsWith" | "endsWith":
            if not isinstance(left, str) or not isinstance(right, str):
                raise _mismatch(sign, "texts", left, right)
            return left.startswith(right) if sign == "startsWith" else left.endswith(right)
    raise EvaluationError(f"unknown operator `{sign}`")


def equal(left: Json, right: Json) -> bool:
    """Return whether two JSON values are equal; 1 equals 1.0 and differs from true. Deep values use no stack."""
    pairs = [(left, right)]
    while pairs:
        a, b = pairs.pop()
        if isinstance(a, dict) and isinstance(b, dict):
            if a.keys() != b.keys():
                return False
            pairs.extend((a[key], b[key]) for key in a)
        elif isinstance(a, list) and isinstance(b, list):
            if len(a) != len(b):
                return False
            pairs.extend(zip(a, b, strict=True))
        elif isinstance(a, bool) is not isinstance(b, bool) or a != b:
            return False
    return True


def _mismatch(sign: str, wanted: str, left: Json, right: Json) -> EvaluationError:
    return EvaluationError(f"operator `{sign}` needs {wanted}, these are {describe(left)} and {describe(right)}")


def _arithmetic(sign: str, left: Json, right: Json) -> Json:
    if sign == "+" and isinstance(left, str) and isinstance(right, str):
        return left + right
    if sign == "+" and isinstance(left, list) and isinstance(right, list):
        return left + right
    if not is_number(left) or not is_number(right):
        raise _mismatch(sign, "numbers", left, right)
    try:
        return finite(_ARITHMETIC[sign](left, right))
    except ZeroDivisionError:
        raise EvaluationError(f"division by zero: {left} {sign} {right}") from None
    except OverflowError:
        raise EvaluationError(f"the result of `{sign}` is too large") from None


def finite(value: Json) -> Json:
    """Return a number; raise `OverflowError` if it is infinite, or too large."""
    if not math.isfinite(value) if isinstance(value, float) else value.bit_length() > MAX_INTEGER_BITS:
        raise OverflowError
    return value


def _contains(sign: str, container: Json, element: Json) -> bool:
    match container:
        case list():
            return any(equal(member, element) for member in container)
        case dict():
            return isinstance(element, str) and element in container
        case str():
            if not isinstance(element, str):
                raise EvaluationError(f"operator `{sign}` on a text needs a text, this is {describe(element)}")
            return element in container
    raise EvaluationError(f"operator `{sign}` needs a list, a map or a text to search, this is {describe(container)}")


def index(target: Json, key: Json, *, optional: bool = False) -> Json:
    """Evaluate `target[key]`: a list element or character by number (negative from the end), a map value by key.

    An optional key that is missing gives null.
    """
    match target:
        case list() | str():
            if not isinstance(key, int) or isinstance(key, bool):
                raise EvaluationError(f"the index of {describe(target)} must be a whole number, this is {describe(key)}")
            if not -len(target) <= key < len(target):
                raise EvaluationError(f"index {key} is out of range, the length is {len(target)}")
            return target[key]
        case dict():
            if not isinstance(key, str):
                raise EvaluationError(f"the key of a map must be a text, this is {describe(key)}")
            if key not in target:
                if optional:
                    return None
                raise EvaluationError(f"the map has no key {json.dumps(key, ensure_ascii=False)}{_keys(target)}")
            return target[key]
    raise EvaluationError(f"{describe(target)} has no elements to index")


def member(target: Json, name: str, path: str) -> Json:
    """Evaluate `path.name`: a value of a map; `name?` is null if there is none."""
    if name.endswith("?"):
        name = name[:-1]
        if isinstance(target, dict) and name not in target:
            return None
    if not isinstance(target, dict):
        raise EvaluationError(f"`{path}` is {describe(target)}, it has no `{name}`")
    if name not in target:
        raise EvaluationError(f"`{path}` has no `{name}`{_keys(target)}")
    return target[name]


def _keys(target: dict[str, Json]) -> str:
    names = sorted(target)[:8]
    return f"; it has {', '.join(names)}{', ...' if len(target) > len(names) else ''}" if names else "; it is empty"


# --- sizes -----------------------------------------------------------------------------------------------------------

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
        measures = self._known
        open_: list[Value] = [value]
        while open_:
            container = open_[-1]
            parts = container.values() if isinstance(container, dict) else container
            kinds = {*map(type, parts)}
            flat = kinds <= _SCALARS
            unknown = [] if flat else [part for part in parts if isinstance(part, _PARTS) and id(part) not in measures]
            if unknown:
                open_ += unknown
                continue
            open_.pop()
            size, depth = 2 + _ELEMENT * len(container), 0
            if isinstance(container, dict):
                size += sum(map(len, container))
            if flat and len(kinds) == 1:
                size += _scalars(parts, *kinds)
                parts = ()
            for part in parts:
                if isinstance(part, _PARTS):
                    measure = measures[id(part)]
                    size, depth = size + measure[0], max(depth, measure[1])
                else:
                    size += _scalar(part)
            measures[id(container)] = size, depth + 1, container
        size, depth, _ = measures[id(value)]
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


# --- functions -------------------------------------------------------------------------------------------------------


def call(name: str, args: Sequence[Json], sizes: Sizes) -> Json:
    """Return the value of `name(args)`; a null list counts as empty."""
    if len(args) != (2 if name == "join" else 1):
        raise EvaluationError(f"`{name}` takes {'two arguments' if name == 'join' else 'one argument'}, here are {len(args)}")
    elements = _list(args[0], f"`{name}` needs a list, this")
    match name:
        case "count":
            return len(elements)
        case "sum":
            return _sum(elements)
        case "first":
            return elements[0] if elements else None
        case "join":
            return _join(elements, args[1], sizes)
        case "flatten":
            lists = [_list(element, "`flatten` needs a list of lists; in this one an element") for element in elements]
            sizes.check_sum(*lists)
            return list(chain.from_iterable(lists))
    raise EvaluationError(f"unknown function `{name}`")


def _list(value: Json, needs: str) -> list[Json]:
    if value is not None and not isinstance(value, list):
        raise EvaluationError(f"{needs} is {describe(value)}")
    return value or []


def _sum(elements: list[Json]) -> Json:
    wrong = [element for element in elements if not is_number(element)]
    if wrong:
        raise EvaluationError(f"`sum` needs a list of numbers; in this one an element is {describe(wrong[0])}")
    try:
        return finite(sum(elements))
    except OverflowError:
        raise EvaluationError("the result of `sum` is too large") from None


def _join(elements: list[Json], separator: Json, sizes: Sizes) -> str:
    if not isinstance(separator, str):
        raise EvaluationError(f"`join` needs a text as separator, this is {describe(separator)}")
    size = sizes.of(elements) + sizes.of(separator) * len(elements)
    sizes.check(size)
    sizes.count(size)
    return separator.join([text(element) for element in elements])
