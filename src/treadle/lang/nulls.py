"""References that a condition has found not to be null, within the blocks and operands that run only then.

All true cases of a `when` run, and `case _` only if none is true: a case knows what its own condition says if it is true, and the
default what every condition says if it is false.
"""

from __future__ import annotations

from collections.abc import Iterable

from treadle.lang import tree
from treadle.lang.scope import Known, Scope

_NOTHING: frozenset[Known] = frozenset()


def known_if(outcome: bool, expr: tree.Expr, scope: Scope) -> frozenset[Known]:
    """Return the references that are not null if the condition is true, or if it is false."""
    match expr:
        case tree.Unary(operator="!"):
            return known_if(not outcome, expr.operand, scope)
        case tree.Binary(operator="==" | "!="):
            if (expr.operator == "!=") is outcome:
                for value, other in ((expr.left, expr.right), (expr.right, expr.left)):
                    if isinstance(other, tree.Literal) and other.value is None and (found := key_of(value, scope)) is not None:
                        return frozenset([found])
        case tree.Binary(operator="&&" | "||"):
            return _all_if(outcome, expr.operator, (expr.left, expr.right), scope)
        case tree.Chain() if expr.operators[0] in ("&&", "||"):
            return _all_if(outcome, expr.operators[0], expr.operands, scope)
    return _NOTHING


def _all_if(outcome: bool, operator: str, operands: Iterable[tree.Expr], scope: Scope) -> frozenset[Known]:
    """A true `&&` has only true operands, a false `||` only false ones."""
    if (operator == "&&") is not outcome:
        return _NOTHING
    return frozenset().union(*(known_if(outcome, each, scope) for each in operands))


def key_of(expr: tree.Expr, scope: Scope) -> Known | None:
    """Resolve a reference: the owner of its first name, and the path."""
    if isinstance(expr, tree.InputRef):
        owner: object = next((names for names, _ in scope.inputs.layers if names.find(expr.path[0]) is not None), None)
    elif isinstance(expr, tree.Ref):
        hit = scope.find_loop_or_step(expr.path[0])
        owner = None if hit is None else hit[1] or hit[0].loop
    else:
        return None
    return None if owner is None else (id(owner), expr.path)
