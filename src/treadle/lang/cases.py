"""Warns about cases that can both be true and yield the same return.

All cases whose condition is true run, and of the values that they yield the last one counts. Other languages take the first case.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

from treadle.lang import tree
from treadle.lang.bindings import Context
from treadle.lang.diagnostics import Source

_Interval = tuple[float, bool, float, bool]
"""The low end, whether it is included, the high end, whether it is included."""
_MIRRORED = {"<": ">", ">": "<", "<=": ">=", ">=": "<="}


def check_overlap(cases: tuple[tree.Case, ...], source: Source, context: Context) -> None:
    """Warn about a case that overlaps an earlier one and yields the same return."""
    before: list[tuple[tree.Case, set[str]]] = []
    for case in cases:
        if case.is_default or len(before) > 100:
            return
        given = {arg.name.text for arg in _yielded(case.block)}
        for other, names in before:
            both = sorted(given & names)
            if both and _overlap(case.condition, other.condition):
                message = (
                    f"this case and that in line {other.span.line} can both be true; then both run, and the last `{both[0]}` counts"
                )
                hint = "exclude the other case in the condition, as in `$.x > 1 && $.x <= 10`"
                context.reporter.warn("overlapping-cases", source, case.condition.span, message, hint=hint)
                break
        before.append((case, given))


def _yielded(block: tree.Block | tree.TooDeep) -> Iterator[tree.Arg]:
    for statement in block.statements if isinstance(block, tree.Block) else ():
        if isinstance(statement, tree.Yield):
            yield from statement.call.args


def _overlap(one: tree.Expr, other: tree.Expr) -> bool:
    """Return whether the conditions are the same, or compare the same value with numbers so that both can hold."""
    if one == other:
        return True
    first, second = _interval(one), _interval(other)
    if first is None or second is None or first[0] != second[0]:
        return False
    return _meet(first[1], second[1]) is not None


def _interval(expr: tree.Expr) -> tuple[tree.Expr, _Interval] | None:
    """Return the reference that a condition compares with numbers, and the numbers for which it holds."""
    if not isinstance(expr, tree.Binary):
        return None
    if expr.operator == "&&":
        left, right = _interval(expr.left), _interval(expr.right)
        if left is None or right is None or left[0] != right[0]:
            return None
        both = _meet(left[1], right[1])
        return None if both is None else (left[0], both)
    operator, value, number = expr.operator, expr.left, expr.right
    if isinstance(value, tree.Literal):
        operator, value, number = _MIRRORED.get(operator, operator), number, value
    if not isinstance(value, tree.InputRef | tree.Ref) or not isinstance(number, tree.Literal):
        return None
    if isinstance(number.value, bool) or not isinstance(number.value, int | float):
        return None
    at = number.value
    match operator:
        case "<" | "<=":
            return value, (-inf, False, at, operator == "<=")
        case ">" | ">=":
            return value, (at, operator == ">=", inf, False)
        case "==":
            return value, (at, True, at, True)
    return None


def _meet(one: _Interval, other: _Interval) -> _Interval | None:
    low = max((one[0], not one[1]), (other[0], not other[1]))
    high = min((one[2], one[3]), (other[2], other[3]))
    if low[0] > high[0] or (low[0] == high[0] and (low[1] or not high[1])):
        return None
    return low[0], not low[1], high[0], high[1]
