"""The parameters of a step. Precedence: argument, call-site mixin, implicit, signature mixin, the facet's own default.

Values at the call are evaluated in the caller's scope; the others can read the parameters themselves (`$.other`), in any order
of dependency.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from treadle.evaluator.draft import Draft
from treadle.evaluator.expressions import evaluate_json, evaluate_named
from treadle.evaluator.operators import EvaluationError, describe, is_number, text
from treadle.evaluator.plan import FacetPlan, inputs_in, is_built_in, is_retry, is_timeout
from treadle.evaluator.records import StepRow, Value
from treadle.evaluator.scope import Scope, SignatureScope
from treadle.lang.fits import misfits
from treadle.lang.mixins import LONGEST_TIMEOUT, RETRY_RANGES, TIMEOUT_UNITS
from treadle.lang.program import Arg, Expr, Facet, MapLiteral, Mixin, Schema, Step
from treadle.model.retry import RetryPolicy
from treadle.model.stored import write


def given_at_call(args: Iterable[Arg], mixins: Sequence[Mixin], scope: Scope) -> dict[str, Value]:
    """Return the arguments, and the values that call-site mixins add without overriding; an aliased mixin is one parameter."""
    given = {arg.name: evaluate_named(arg.name, arg.value, scope, "argument") for arg in args}
    for name, expr in _mixed_in(mixins) if mixins else ():
        if name not in given:
            given[name] = evaluate_named(name, expr, scope, "mixin argument")
    return given


def _mixed_in(mixins: Iterable[Mixin]) -> Iterable[tuple[str, Expr]]:
    for mixin in mixins:
        if is_built_in(mixin):
            continue
        if mixin.alias is not None:
            yield mixin.alias, MapLiteral(tuple((arg.name, arg.value) for arg in mixin.args))
        else:
            yield from ((arg.name, arg.value) for arg in mixin.args)


def with_defaults(
    draft: Draft, facet: FacetPlan | Schema | None, given: dict[str, Value], namespace: str | None
) -> dict[str, Value]:
    """Add the values of implicits (seen from the caller's namespace) and of the signature to the given ones.

    Optional fields of a schema are null.
    """
    if facet is None:
        return given
    if isinstance(facet, Schema):
        return {**{field.name: None for field in facet.fields if field.default is not None}, **given}
    if not facet.has_implicits:
        return _fill(draft, dict(given), facet.pool) if facet.pool else given
    pool: dict[str, tuple[str, Expr]] = {}
    for implicit in draft.plan.program.list_implicits(facet.facet.qualified_name, namespace):
        for arg in implicit.call.args:
            pool.setdefault(arg.name, ("implicit", arg.value))
        for name, expr in _mixed_in(implicit.call.mixins):
            pool.setdefault(name, ("implicit", expr))
    for name, value in facet.pool.items():
        pool.setdefault(name, value)
    return _fill(draft, dict(given), pool)


def misfit(draft: Draft, row: StepRow, result: Mapping[str, Value]) -> str | None:
    """Return the message for a handler's result that lacks a declared return or has one of another type; else None.

    Further names alone are accepted, and so are missing returns that nothing reads or that the step's blocks may still yield.
    """
    facet, program = draft.plan.facet(row.facet), draft.plan.program
    if facet is None:
        return None
    wrong: list[str] = []
    for each in facet.checked:
        if each.name in result:
            wrong += misfits(program, each.name, each.type, result[each.name])
    if wrong:
        return f"the handler of `{row.facet}` returned a wrong value: {'; '.join(wrong)}"
    missing = [name for name in facet.required if name not in result and name not in row.params and name not in row.returns]
    if not missing:
        return None
    statement = draft.statement_of(row)
    if facet.facet.blocks or (isinstance(statement, Step) and statement.body is not None):
        return None
    declared = [each.name for each in facet.facet.returns]
    unknown = [name for name in result if name not in declared]
    if not unknown:
        missing = [name for name in missing if row.name is not None and draft.plan.reads(row.name, name)]
        if not missing:
            return None
        return f"the handler of `{row.facet}` did not return {', '.join(missing)}; it returns {', '.join(declared)}"
    instead = f"the result has {', '.join(unknown)}, which `{row.facet}` does not return, but not {', '.join(missing)}"
    return f"{instead}; it returns {', '.join(declared)}"


def return_defaults(draft: Draft, facet: FacetPlan | None, params: dict[str, Value], returns: dict[str, Value]) -> dict[str, Value]:
    """Return the defaults of missing returns."""
    if facet is None or not facet.defaults:
        return {}
    scope = SignatureScope(draft, {**returns, **params})
    missing = [each for each in facet.defaults if each.name not in returns]
    return {each.name: evaluate_named(each.name, each.default, scope, "default of") for each in missing if each.default}


def _fill(draft: Draft, params: dict[str, Value], pool: dict[str, tuple[str, Expr]]) -> dict[str, Value]:
    """Evaluate missing parameters, each after those it reads; without recursion, so that long chains use no stack."""
    scope = SignatureScope(draft, params)
    for first in pool:
        path = [first]
        while path:
            name = path[-1]
            if name in params:
                path.pop()
                continue
            what, expr = pool[name]
            before = [each for each in inputs_in(expr) if each in pool and each not in params]
            if not before:
                params[name] = evaluate_named(name, expr, scope, what)
                path.pop()
            elif before[0] in path:
                raise EvaluationError(f"{what} `{name}`: it needs `{before[0]}`, which in turn needs `{name}`")
            else:
                path.append(before[0])
    return params


def timeout_of(draft: Draft, mixins: Sequence[Mixin], scope: Scope, facet: Facet, params: dict[str, Value]) -> int | None:
    """Return the milliseconds of the first `Timeout` mixin; the call's take precedence over the signature's."""
    for mixin in mixins:
        if is_timeout(mixin):
            return _milliseconds(mixin, scope)
    for mixin in facet.mixins:
        if is_timeout(mixin):
            return _milliseconds(mixin, SignatureScope(draft, params))
    return None


def retry_of(draft: Draft, mixins: Sequence[Mixin], scope: Scope, facet: Facet, params: dict[str, Value]) -> str | None:
    """Return the policy of the first `Retry` mixin as JSON; the call's take precedence over the signature's."""
    for mixin in mixins:
        if is_retry(mixin):
            return _policy(mixin, scope)
    for mixin in facet.mixins:
        if is_retry(mixin):
            return _policy(mixin, SignatureScope(draft, params))
    return None


def _policy(mixin: Mixin, scope: Scope) -> str:
    given = {"maxAttempts": 1.0, "delay": 1.0, "backoff": 2.0, "maxDelay": 900.0, "jitter": 0.0}
    for arg in mixin.args:
        if arg.name not in RETRY_RANGES:
            raise EvaluationError(f"Retry has no `{arg.name}`; it has {', '.join(RETRY_RANGES)}")
        value = evaluate_json(arg.value, scope)
        low, high = RETRY_RANGES[arg.name]
        if not is_number(value) or not low <= value <= high:
            shown = text(value) if is_number(value) else describe(value)
            raise EvaluationError(f"Retry needs `{arg.name}` from {low:,.0f} to {high:,.0f}, this is {shown}")
        given[arg.name] = value
    if given["maxAttempts"] != int(given["maxAttempts"]):
        raise EvaluationError(f"Retry needs a whole number as `maxAttempts`, this is {text(given['maxAttempts'])}")
    first = round(given["delay"] * 1000)
    longest = max(first, round(given["maxDelay"] * 1000))
    return write(RetryPolicy(int(given["maxAttempts"]) - 1, first, given["backoff"], longest, given["jitter"]))


def _milliseconds(mixin: Mixin, scope: Scope) -> int | None:
    total = 0.0
    for arg in mixin.args:
        unit = TIMEOUT_UNITS.get(arg.name)
        if unit is None:
            raise EvaluationError(f"Timeout has no `{arg.name}`; it has {', '.join(TIMEOUT_UNITS)}")
        value = evaluate_json(arg.value, scope)
        if not is_number(value) or abs(value) > LONGEST_TIMEOUT:
            raise EvaluationError(
                f"Timeout needs a number of {arg.name}, this is {text(value) if is_number(value) else describe(value)}"
            )
        total += value * unit
    if not 0 < total <= LONGEST_TIMEOUT:
        raise EvaluationError("a Timeout must be more than zero and at most 366 days")
    return max(1, round(total))
