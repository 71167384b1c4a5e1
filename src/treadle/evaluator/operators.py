"""Operators on JSON values: total, with a readable error for operands that do not fit."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence

from treadle.model.values import Json

_LONGEST_INTEGER = 4_096
"""Maximum size of integers in bits."""
_LONGEST_MESSAGE = 2_000
"""Characters of an error message, which may quote a value."""


class EvaluationError(Exception):
    """An expression has no value; the message has the reason, and `catch` sees `type` as the error's type."""

    def __init__(self, message: str, kind: str = "evaluation_error") -> None:
        message = message if len(message) <= _LONGEST_MESSAGE else f"{message[:_LONGEST_MESSAGE]}..."
        super().__init__(message)
        self.message, self.type = message, kind

    def within(self, what: str) -> EvaluationError:
        """Return the same error, prefixed with its place."""
        return EvaluationError(f"{what}: {self.message}", self.type)


def describe(value: Json) -> str:
    """Return the kind of a value, with an article."""
    match value:
        case None:
            return "null"
        case bool():
            return "a Boolean"
        case int() | float():
            return "a number"
        case str():
            return "a text"
        case list():
            return "a list"
        case _:
            return "a map"


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


def invert(value: Json) -> bool:
    """`!a`."""
    return not boolean(value, "operator `!`")


def boolean(value: Json, what: str) -> bool:
    """Return the value, which must be a Boolean."""
    if not isinstance(value, bool):
        raise EvaluationError(f"{what} needs a Boolean, this is {describe(value)}")
    return value


def binary(operator: str, left: Json, right: Json) -> Json:
    """Apply any binary operator except `&&` and `||`, which do not always evaluate their right side."""
    match operator:
        case "+" | "-" | "*" | "/" | "%":
            return _arithmetic(operator, left, right)
        case "==":
            return equal(left, right)
        case "!=":
            return not equal(left, right)
        case "<" | ">" | "<=" | ">=":
            return _ordered(operator, left, right)
        case "in":
            return _contains(operator, right, left)
        case "not in":
            return not _contains(operator, right, left)
        case "contains":
            return _contains(operator, left, right)
        case "startsWith" | "endsWith":
            if not isinstance(left, str) or not isinstance(right, str):
                raise _mismatch(operator, "texts", left, right)
            return left.startswith(right) if operator == "startsWith" else left.endswith(right)
    raise EvaluationError(f"unknown operator `{operator}`")


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


def _mismatch(operator: str, wanted: str, left: Json, right: Json) -> EvaluationError:
    return EvaluationError(f"operator `{operator}` needs {wanted}, these are {describe(left)} and {describe(right)}")


def _arithmetic(operator: str, left: Json, right: Json) -> Json:
    if operator == "+" and isinstance(left, str) and isinstance(right, str):
        return left + right
    if operator == "+" and isinstance(left, list) and isinstance(right, list):
        return left + right
    if not is_number(left) or not is_number(right):
        raise _mismatch(operator, "numbers", left, right)
    try:
        return finite(_calculate(operator, left, right))
    except ZeroDivisionError:
        raise EvaluationError(f"division by zero: {left} {operator} {right}") from None
    except OverflowError:
        raise EvaluationError(f"the result of `{operator}` is too large") from None


def _calculate(operator: str, left: Json, right: Json) -> Json:
    match operator:
        case "+":
            return left + right
        case "-":
            return left - right
        case "*":
            return left * right
        case "/":
            return left / right
        case _:
            return left % right


def finite(value: Json) -> Json:
    if isinstance(value, float) and not math.isfinite(value):
        raise OverflowError
    if isinstance(value, int) and value.bit_length() > _LONGEST_INTEGER:
        raise OverflowError
    return value


def _ordered(operator: str, left: Json, right: Json) -> bool:
    both_text = isinstance(left, str) and isinstance(right, str)
    if not both_text and not (is_number(left) and is_number(right)):
        raise _mismatch(operator, "two numbers or two texts", left, right)
    match operator:
        case "<":
            return bool(left < right)
        case ">":
            return bool(left > right)
        case "<=":
            return bool(left <= right)
        case _:
            return bool(left >= right)


def _contains(operator: str, container: Json, element: Json) -> bool:
    match container:
        case list():
            return any(equal(each, element) for each in container)
        case dict():
            return isinstance(element, str) and element in container
        case str():
            if not isinstance(element, str):
                raise EvaluationError(f"operator `{operator}` on a text needs a text, this is {describe(element)}")
            return element in container
    raise EvaluationError(f"operator `{operator}` needs a list, a map or a text to search, this is {describe(container)}")


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
