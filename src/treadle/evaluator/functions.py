"""Functions of expressions on JSON values: total, bounded, with a readable error for arguments that do not fit."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from treadle.evaluator.operators import EvaluationError, describe, finite, is_number, text
from treadle.evaluator.sizes import Sizes
from treadle.model.values import Json


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
            lists = [_list(each, "`flatten` needs a list of lists; in this one an element") for each in elements]
            sizes.check_sum(*lists)
            return list(chain.from_iterable(lists))
    raise EvaluationError(f"unknown function `{name}`")


def _list(value: Json, needs: str) -> list[Json]:
    if value is not None and not isinstance(value, list):
        raise EvaluationError(f"{needs} is {describe(value)}")
    return value or []


def _sum(elements: list[Json]) -> Json:
    wrong = [each for each in elements if not is_number(each)]
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
    return separator.join([text(each) for each in elements])
