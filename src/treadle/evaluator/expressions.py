"""Evaluates expressions in a scope. A bare reference may evaluate to a `BlobRef`; operations on a value load it.

Name resolution has one rule for `$.` inputs, loop variables and steps.

The chain of a block leads outwards over rows: an item has its loop variable, a catch the error, the step that owns the block
its parameters and then its returns. It continues beyond that step only if the block is part of the step's own body or catch; a
facet's body cannot see its callers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import assert_never

from treadle.evaluator import operators
from treadle.evaluator.draft import Draft
from treadle.evaluator.operators import EvaluationError, member
from treadle.evaluator.records import StepRow, Value
from treadle.evaluator.states import CASE, ITEM, STATEMENT_COMPLETE
from treadle.lang.nodes import (
    ArrayLiteral,
    Binary,
    Chain,
    Concat,
    Expr,
    FunctionCall,
    Index,
    InputRef,
    Literal,
    LoopRef,
    MapLiteral,
    Ref,
    Step,
    StepRef,
    TooDeep,
    Unary,
)
from treadle.model.values import Json

_ERROR_NAMES = frozenset(["error", "error_type"])
LINK = "$step"
"""The key that marks a step reference among values: `{"$step": id, "facet": name}`."""
_LINK_KEYS = {LINK, "facet"}
_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class SignatureScope:
    """The scope of defaults, implicits and signature mixins: only the facet's parameters known so far."""

    def __init__(self, draft: Draft, params: Mapping[str, Value]) -> None:
        self.draft = draft
        self._params = params

    def input(self, name: str) -> Value:
        """Return the value of `$.name`."""
        if name in self._params:
            return self._params[name]
        raise EvaluationError(f"`$.{name}` was never given")

    def loop(self, name: str) -> Value:
        """Return the current element of the nearest loop over `name`."""
        raise EvaluationError(f"`{name}` is not a loop variable here")

    def step(self, name: str) -> StepRow:
        """Return the row of the nearest step of that name."""
        raise EvaluationError(f"step `{name}` is not visible in a signature")


class BlockScope(SignatureScope):
    """The scope of everything within a block, an item, a case or a catch."""

    def __init__(self, draft: Draft, row: StepRow) -> None:
        super().__init__(draft, {})
        self._row = row

    def _outwards(self) -> Iterator[tuple[StepRow, StepRow | None]]:
        """Yield rows from the inside out, each with the previous one."""
        inner: StepRow | None = None
        row = self._row
        while True:
            yield row, inner
            if row.parent_id is None or (row.is_step and not (inner and self._is_own(inner, row))):
                return
            inner, row = row, self.draft.get(row.parent_id)

    def _is_own(self, block: StepRow, owner: StepRow) -> bool:
        """Return whether a block is part of the step itself, not of its facet."""
        step = self.draft.statement_of(owner)
        return isinstance(step, Step) and any(
            body is not None and body.id == block.statement_id for body in (step.body, step.catch)
        )

    def input(self, name: str) -> Value:
        for row, _ in self._outwards():
            for values in (row.params, row.returns) if row.is_step else (row.loop, row.params):
                if name in values:
                    return values[name]
            if row.is_step and name in _ERROR_NAMES and _may_be_caught(self.draft, row):
                return _error_attribute(row, name)
        return super().input(name)

    def loop(self, name: str) -> Value:
        for row, _ in self._outwards():
            if name in row.loop:
                return row.loop[name]
        return super().loop(name)

    def step(self, name: str) -> StepRow:
        for row, inner in self._outwards():
            if inner is not None and inner.is_step and inner.name == name:
                return inner
            if not _holds_statements(self.draft, row) or name not in self.draft.plan.block(self.draft.block_of(row)).order:
                continue
            step_row = self.draft.find_child(row, name)
            if step_row is None or step_row.state is not STATEMENT_COMPLETE:
                raise EvaluationError(f"step `{name}` is not complete")
            return step_row
        raise EvaluationError(f"there is no step `{name}` here")


def _holds_statements(draft: Draft, row: StepRow) -> bool:
    """Return whether a row's children are the steps of its block; those of a foreach block are in its items."""
    if row.is_step:
        return False
    if row.kind in (ITEM, CASE):
        return True
    return draft.block_of(row).foreach is None


def _may_be_caught(draft: Draft, row: StepRow) -> bool:
    if row.error is not None:
        return True
    step = draft.statement_of(row)
    return isinstance(step, Step) and step.catch is not None


def _error_attribute(row: StepRow, name: str) -> Json:
    if row.error is None:
        return None
    return row.error.message if name == "error" else row.error.type


def attribute(draft: Draft, row: StepRow, name: str) -> Value:
    """Return the value of `step.name`: the caught error, else a return, else a parameter."""
    if name in _ERROR_NAMES and row.error is not None:
        return _error_attribute(row, name)
    for values in (row.returns, row.params):
        if name in values:
            return values[name]
    if name in _ERROR_NAMES and _may_be_caught(draft, row):
        return None
    facet = draft.facet_of(row)
    declared = facet is not None and any(param.name == name for param in facet.returns)
    why = f"`{row.facet}` declares it, but nothing gave it a value" if declared else f"`{row.facet}` gave no such value"
    raise EvaluationError(f"step `{row.name}` has no `{name}`: {why}")


def attributes(draft: Draft, row: StepRow) -> dict[str, Json]:
    """Return all attributes of a step as one JSON value; a return shadows a parameter."""
    return {name: draft.load(value) for name, value in {**row.params, **row.returns}.items()}


def link_to(row: StepRow) -> dict[str, Json]:
    """Return a step as a value."""
    return {LINK: row.id, "facet": row.facet}


def _linked(draft: Draft, value: Json) -> str | None:
    """Return the id of the step to which a value refers. Only ids of this run count, so users cannot forge references."""
    if not isinstance(value, dict) or value.keys() != _LINK_KEYS:
        return None
    step_id = value[LINK]
    if not isinstance(step_id, str) or not _ID.fullmatch(step_id) or step_id[:13] != draft.run.id[:13]:
        return None
    return step_id


def follow(draft: Draft, value: Value, path: tuple[str, ...], path_text: str) -> Value:
    """Return the value at the end of a path into a value; `path_text` is its beginning as written."""
    for name in path:
        value = draft.load(value)
        step_id = _linked(draft, value)
        if step_id is not None:
            row = draft.find(step_id)
            if row is None:
                raise EvaluationError(f"`{path_text}` refers to a step that does not exist")
            value = attribute(draft, row, name.removesuffix("?"))
        else:
            value = member(value, name, path_text)
        path_text = f"{path_text}.{name.removesuffix('?')}"
    return value


# --- evaluation ------------------------------------------------------------------------------------------------------


def evaluate(expr: Expr, scope: SignatureScope) -> Value:
    """Return the value; raise `EvaluationError` if it has none, `Missing` if a row or value must be loaded first."""
    match expr:
        case Literal(value):
            return value
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
            return not operators.boolean(value, "operator `!`") if operator == "!" else operators.negate(value)
        case ArrayLiteral(elements):
            return scope.draft.sizes.checked([evaluate_json(element, scope) for element in elements])
        case MapLiteral(entries):
            return scope.draft.sizes.checked({entry.name: evaluate_json(entry.value, scope) for entry in entries})
        case Index(target, key, optional):
            return operators.index(evaluate_json(target, scope), evaluate_json(key, scope), optional=optional)
        case FunctionCall(name, args):
            return operators.call(name, [evaluate_json(arg, scope) for arg in args], scope.draft.sizes)
        case Ref() | TooDeep():
            raise AssertionError("a program has resolved references alone")
    assert_never(expr)


def evaluate_json(expr: Expr, scope: SignatureScope) -> Json:
    """Return the value, loaded."""
    return scope.draft.load(evaluate(expr, scope))


def evaluate_condition(expr: Expr, scope: SignatureScope, what: str) -> bool:
    """Return the value, which must be a Boolean."""
    return operators.boolean(evaluate_json(expr, scope), what)


def _chain(expr: Chain, scope: SignatureScope) -> Json:
    value = evaluate_json(expr.operands[0], scope)
    for operator, operand in zip(expr.operators, expr.operands[1:], strict=True):
        value = _binary(operator, value, operand, scope)
    return value


def _binary(operator: str, left: Json, operand: Expr, scope: SignatureScope) -> Json:
    if operator in ("&&", "||"):
        what = f"operator `{operator}`"
        if operators.boolean(left, what) is (operator == "||"):
            return left
        return operators.boolean(evaluate_json(operand, scope), what)
    right = evaluate_json(operand, scope)
    if operator == "+" and isinstance(left, str | list) and isinstance(right, str | list):
        scope.draft.sizes.check_sum(left, right)
    return operators.binary(operator, left, right)


def evaluate_named(name: str, expr: Expr, scope: SignatureScope, what: str) -> Value:
    """Return the value of an argument or default; an error names it."""
    try:
        return evaluate(expr, scope)
    except EvaluationError as error:
        raise error.within(f"{what} `{name}`") from None
