"""Evaluates expressions in a scope.

A bare reference may evaluate to a `BlobRef`; operations on a value load it.
"""

from __future__ import annotations

from typing import assert_never

from treadle.evaluator import functions, operators
from treadle.evaluator.operators import EvaluationError
from treadle.evaluator.records import Value
from treadle.evaluator.scope import Scope, attribute, follow, link_to
from treadle.lang.program import (
    ArrayLiteral,
    Binary,
    Boolean,
    Chain,
    Concat,
    Double,
    Expr,
    Function,
    Index,
    InputRef,
    Int,
    LoopRef,
    MapLiteral,
    Null,
    StepRef,
    String,
    Unary,
)
from treadle.model.values import Json


def evaluate(expr: Expr, scope: Scope) -> Value:
    """Return the value; raise `EvaluationError` if it has none, `Missing` if a row or value must be loaded first."""
    match expr:
        case String(value) | Int(value) | Double(value) | Boolean(value):
            return value
        case Null():
            return None
        case InputRef(path):
            return follow(scope.draft, scope.input(path[0]), path[1:], f"$.{path[0]}")
        case LoopRef(path):
            return follow(scope.draft, scope.loop(path[0]), path[1:], path[0])
        case StepRef(path):
            row = scope.step(path[0])
            if len(path) == 1:
                return link_to(row)
            return follow(scope.draft, attribute(scope.draft, row, path[1]), path[2:], f"{path[0]}.{path[1]}")
        case Concat(operands):
            values = [evaluate_json(operand, scope) for operand in operands]
            scope.draft.sizes.check_sum(*values)
            return operators.concat(values)
        case Binary(operator, left, right):
            return _binary(operator, evaluate_json(left, scope), right, scope)
        case Chain():
            return _chain(expr, scope)
        case Unary(operator, operand):
            value = evaluate_json(operand, scope)
            return operators.invert(value) if operator == "!" else operators.negate(value)
        case ArrayLiteral(elements):
            return scope.draft.sizes.checked([evaluate_json(element, scope) for element in elements])
        case MapLiteral(entries):
            return scope.draft.sizes.checked({key: evaluate_json(value, scope) for key, value in entries})
        case Index(target, key, optional):
            return operators.index(evaluate_json(target, scope), evaluate_json(key, scope), optional=optional)
        case Function(name, args):
            return functions.call(name, [evaluate_json(arg, scope) for arg in args], scope.draft.sizes)
    assert_never(expr)


def evaluate_json(expr: Expr, scope: Scope) -> Json:
    """Return the value, loaded."""
    return scope.draft.load(evaluate(expr, scope))


def evaluate_condition(expr: Expr, scope: Scope, what: str) -> bool:
    """Return the value, which must be a Boolean."""
    return operators.boolean(evaluate_json(expr, scope), what)


def _chain(expr: Chain, scope: Scope) -> Json:
    value = evaluate_json(expr.operands[0], scope)
    for operator, operand in zip(expr.operators, expr.operands[1:], strict=True):
        value = _binary(operator, value, operand, scope)
    return value


def _binary(operator: str, left: Json, operand: Expr, scope: Scope) -> Json:
    if operator in ("&&", "||"):
        what = f"operator `{operator}`"
        if operators.boolean(left, what) is (operator == "||"):
            return left
        return operators.boolean(evaluate_json(operand, scope), what)
    right = evaluate_json(operand, scope)
    if operator == "+" and isinstance(left, str | list) and isinstance(right, str | list):
        scope.draft.sizes.check_sum(left, right)
    return operators.binary(operator, left, right)


def evaluate_named(name: str, expr: Expr, scope: Scope, what: str) -> Value:
    """Return the value of an argument or default; an error names it."""
    try:
        return evaluate(expr, scope)
    except EvaluationError as error:
        raise error.within(f"{what} `{name}`") from None
