"""A step from its parameters to its returns: pre-script, aliases, handler, blocks, capture; and catch.

A parameter has the value of the argument, else of the call-site mixin, the implicit, the signature mixin, the facet's own
default. Values at the call are evaluated in the caller's scope; the others can read the parameters themselves (`$.other`), in
any order of dependency.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TypeVar

from treadle.evaluator.blocks import Merge, count_settled, first_error
from treadle.evaluator.draft import (
    Draft,
    FacetPlan,
    LimitReached,
    await_handler,
    await_script,
    error_in,
    inputs_in,
    is_built_in,
    is_retry,
    is_timeout,
    next_catch,
    stopped_at,
    withdraw,
)
from treadle.evaluator.expressions import BlockScope, SignatureScope, attributes, evaluate, evaluate_json, evaluate_named
from treadle.evaluator.operators import EvaluationError, describe, is_number, text
from treadle.evaluator.records import StepError, StepRow, Value
from treadle.evaluator.states import (
    BLOCK,
    CATCH,
    CATCH_CONTINUE,
    FACET_INIT_BEGIN,
    MIXIN,
    MIXIN_BLOCKS_CONTINUE,
    SCHEMA,
    STATEMENT_BLOCKS_CONTINUE,
    STATEMENT_CAPTURE_BEGIN,
    STATEMENT_COMPLETE,
    STATEMENT_ERROR,
    State,
)
from treadle.lang.builtins import MAX_TIMEOUT, RETRY_RANGES, TIMEOUT_UNITS
from treadle.lang.nodes import Arg, Block, Expr, Facet, MapLiteral, Mixin, Schema, Step, named_type
from treadle.lang.program import misfits, with_integers
from treadle.lang.types import words
from treadle.model.retry import RetryPolicy
from treadle.model.stored import write
from treadle.model.values import Json

_T = TypeVar("_T")


def given_at_call(args: Iterable[Arg], mixins: Sequence[Mixin], scope: SignatureScope) -> dict[str, Value]:
    """Return the arguments, and the values that call-site mixins add without overriding; an aliased mixin is one parameter."""
    values: dict[str, Value] = {arg.name: evaluate_named(arg.name, arg.value, scope, "argument") for arg in args}
    for name, expr in _mixed_in(mixins) if mixins else ():
        if name not in values:
            values[name] = evaluate_named(name, expr, scope, "mixin argument")
    return values


def _mixed_in(mixins: Iterable[Mixin]) -> Iterable[tuple[str, Expr]]:
    for mixin in mixins:
        if is_built_in(mixin):
            continue
        if mixin.alias is not None:
            yield mixin.alias, MapLiteral(mixin.args)
        else:
            yield from ((arg.name, arg.value) for arg in mixin.args)


def with_defaults(
    draft: Draft, facet: FacetPlan | Schema | None, values: dict[str, Value], namespace: str | None
) -> dict[str, Value]:
    """Add the values of implicits (seen from the caller's namespace) and of the signature to the given ones.

    Optional fields of a schema are null.
    """
    if facet is None:
        return values
    if isinstance(facet, Schema):
        return {**{field.name: None for field in facet.fields if field.default is not None}, **values}
    if not facet.has_implicits:
        return _fill(draft, dict(values), facet.pool) if facet.pool else values
    pool: dict[str, tuple[str, Expr]] = {}
    for implicit in draft.plan.program.list_implicits(facet.facet.qualified_name, namespace):
        for arg in implicit.call.args:
            pool.setdefault(arg.name, ("implicit", arg.value))
        for name, expr in _mixed_in(implicit.call.mixins):
            pool.setdefault(name, ("implicit", expr))
    for name, value in facet.pool.items():
        pool.setdefault(name, value)
    return _fill(draft, dict(values), pool)


def check_result(draft: Draft, row: StepRow, result: Mapping[str, Value]) -> tuple[dict[str, Value], str | None]:
    """Return a handler's result, with integers for integral floats where declared, and how it differs from the declared returns.

    Further names alone are no difference, and neither are missing returns that the step's blocks may still yield.
    """
    facet, program, checked = draft.plan.facet(row.facet), draft.plan.program, dict(result)
    if facet is None:
        return checked, None
    wrong: list[str] = []
    for param in facet.checked:
        if param.name not in result:
            continue
        value = result[param.name] if named_type(param.type).name == "Json" else draft.load(result[param.name])
        try:
            if misfits(program, param.name, param.type, value):
                checked[param.name] = whole = with_integers(program, param.type, value)
                wrong += misfits(program, param.name, param.type, whole)
        except RecursionError:
            wrong.append(f"{param.name} is nested too deeply to be checked")
    if not _body(draft, row):
        missing = (param for param in facet.required if param.name not in result and param.name not in row.params)
        wrong += [f"{param.name} ({words(param.type)}) is missing" for param in missing]
    if not wrong:
        return checked, None
    declared = {param.name for param in facet.facet.returns}
    wrong += [f"{name} is not declared" for name in result if name not in declared]
    return checked, f"the handler of `{row.facet}` returned another result than declared: {'; '.join(wrong)}"


def return_defaults(draft: Draft, facet: FacetPlan | None, params: dict[str, Value], returns: dict[str, Value]) -> dict[str, Value]:
    """Return the defaults of missing returns."""
    if facet is None or not facet.defaults:
        return {}
    scope = SignatureScope(draft, {**returns, **params})
    missing = [param for param in facet.defaults if param.name not in returns]
    return {param.name: evaluate_named(param.name, param.default, scope, "default of") for param in missing if param.default}


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
            before = [input_name for input_name in inputs_in(expr) if input_name in pool and input_name not in params]
            if not before:
                params[name] = evaluate_named(name, expr, scope, what)
                path.pop()
            elif before[0] in path:
                raise EvaluationError(f"{what} `{name}`: it needs `{before[0]}`, which in turn needs `{name}`")
            else:
                path.append(before[0])
    return params


def option_of(
    is_option: Callable[[Mixin], bool], read: Callable[[Mixin, SignatureScope], _T],
    mixins: Sequence[Mixin], scope: SignatureScope, facet: Facet, params: dict[str, Value],
) -> _T | None:  # fmt: skip
    """Return the value of the first `Timeout` or `Retry` mixin; the call's take precedence over the signature's."""
    for options, where in ((mixins, scope), (facet.mixins, SignatureScope(scope.draft, params))):
        for mixin in options:
            if is_option(mixin):
                return read(mixin, where)
    return None


def _policy(mixin: Mixin, scope: SignatureScope) -> str:
    """Return the policy of a `Retry` mixin as JSON."""
    settings = {"maxAttempts": 1.0, "delay": 1.0, "backoff": 2.0, "maxDelay": 900.0, "jitter": 0.0}
    for arg in mixin.args:
        if arg.name not in RETRY_RANGES:
            raise EvaluationError(f"Retry has no `{arg.name}`; it has {', '.join(RETRY_RANGES)}")
        value = evaluate_json(arg.value, scope)
        low, high = RETRY_RANGES[arg.name]
        if not is_number(value) or not low <= value <= high:
            raise EvaluationError(f"Retry needs `{arg.name}` from {low:,.0f} to {high:,.0f}, this is {_shown(value)}")
        settings[arg.name] = value
    if settings["maxAttempts"] != int(settings["maxAttempts"]):
        raise EvaluationError(f"Retry needs a whole number as `maxAttempts`, this is {text(settings['maxAttempts'])}")
    first = round(settings["delay"] * 1000)
    longest = max(first, round(settings["maxDelay"] * 1000))
    return write(RetryPolicy(int(settings["maxAttempts"]) - 1, first, settings["backoff"], longest, settings["jitter"]))


def _milliseconds(mixin: Mixin, scope: SignatureScope) -> int:
    total = 0.0
    for arg in mixin.args:
        unit = TIMEOUT_UNITS.get(arg.name)
        if unit is None:
            raise EvaluationError(f"Timeout has no `{arg.name}`; it has {', '.join(TIMEOUT_UNITS)}")
        value = evaluate_json(arg.value, scope)
        if not is_number(value) or abs(value) > MAX_TIMEOUT:
            raise EvaluationError(f"Timeout needs a number of {arg.name}, this is {_shown(value)}")
        total += value * unit
    if not 0 < total <= MAX_TIMEOUT:
        raise EvaluationError("a Timeout must be more than zero and at most 366 days")
    return max(1, round(total))


def _shown(value: Json) -> str:
    return text(value) if is_number(value) else describe(value)


def begin_step(draft: Draft, row: StepRow) -> None:
    """Evaluate the parameters, then continue."""
    check_limits(draft, row)
    if draft.is_stopped(row):
        draft.fail(row, stopped_at(row), FACET_INIT_BEGIN)
        return
    try:
        _initialize(draft, row)
    except EvaluationError as error:
        check_growth(draft, row, error)
        fail_step(draft, row, error_in(row, error), FACET_INIT_BEGIN)
        return
    facet = draft.plan.facet(row.facet)
    if row.kind is SCHEMA:
        row.params, row.returns = {}, row.params
        draft.complete(row)
    elif facet is not None and facet.facet.pre_script is not None:
        await_script(draft, row, facet.facet.pre_script, row)
    else:
        continue_after_script(draft, row)


def _initialize(draft: Draft, row: StepRow) -> None:
    statement = draft.statement_of(row)
    mixins: tuple[Mixin, ...] = ()
    scope: SignatureScope
    values: dict[str, Value]
    if isinstance(statement, Step):
        mixins = statement.call.mixins
        scope = BlockScope(draft, draft.get(row.parent_id or ""))
        if statement.call.is_value:
            values = {arg.name: evaluate(arg.value, scope) for arg in statement.call.args}
        else:
            values = given_at_call(statement.call.args, mixins, scope)
    elif isinstance(statement, Mixin):
        scope = SignatureScope(draft, draft.get(row.parent_id or "").params)
        values = given_at_call(statement.args, (), scope)
    else:
        scope, values = SignatureScope(draft, {}), row.params
    facet = draft.plan.facet(row.facet)
    schema = draft.plan.program.find_schema(row.facet or "") if facet is None and row.kind is SCHEMA else None
    row.params = with_defaults(draft, facet or schema, values, draft.plan.program.namespace_of(row.statement_id))
    draft.sizes.check_sum(*row.params.values())
    if facet is not None and facet.facet.is_event and (mixins or facet.has_options):
        row.timeout_for = option_of(is_timeout, _milliseconds, mixins, scope, facet.facet, row.params)
        row.policy = option_of(is_retry, _policy, mixins, scope, facet.facet, row.params)


# --- the stages ----------------------------------------------------------------------------------------------------


def continue_after_script(draft: Draft, row: StepRow, first: int = 0) -> None:
    """Run the signature's aliases one after another (a later one may read an earlier one), starting with `first`."""
    facet = draft.plan.facet(row.facet)
    for number, mixin in facet.aliases if facet else ():
        if number >= first:
            row.state = MIXIN_BLOCKS_CONTINUE
            draft.create(row, mixin.alias or "", MIXIN, mixin.id, ordinal=number, facet=mixin.name)
            return
    if facet is not None and facet.facet.is_event:
        await_handler(draft, row)
    else:
        continue_after_event(draft, row)


def _body(draft: Draft, row: StepRow) -> tuple[Block, ...]:
    """Return the step's own body, else its facet's."""
    statement = draft.statement_of(row)
    if isinstance(statement, Step) and statement.body is not None:
        return (statement.body,)
    facet = draft.plan.facet(row.facet)
    return facet.facet.blocks if facet else ()


def continue_after_event(draft: Draft, row: StepRow) -> None:
    """Start all blocks of the body concurrently."""
    blocks = _body(draft, row)
    row.state = STATEMENT_BLOCKS_CONTINUE
    if blocks:
        _assume_defaults(draft, row)
    for number, block in enumerate(blocks):
        draft.create(row, f"block-{number}", BLOCK, block.id, ordinal=number)
    if not blocks:
        capture(draft, row)


def _assume_defaults(draft: Draft, row: StepRow) -> None:
    """Give missing returns their defaults where a body or catch can read them; one that has no value fails only at the end."""
    facet, statement = draft.plan.facet(row.facet), draft.statement_of(row)
    if facet is not None and (facet.facet.is_event or (isinstance(statement, Step) and (statement.body or statement.catch))):
        with suppress(EvaluationError):
            row.returns = {**row.returns, **return_defaults(draft, facet, row.params, row.returns)}


def part_settled(draft: Draft, row: StepRow, child: StepRow) -> None:
    """Handle a terminal alias, block or catch of the step."""
    count_settled(row, child)
    failed = child.state is STATEMENT_ERROR
    if child.kind is CATCH:
        if failed and child.error is not None:
            failed_in = row.failed_in or CATCH_CONTINUE
            if not child.error.stopped or row.error is None:
                fail_step(draft, row, child.error, failed_in)
            elif draft.stopping:
                withdraw(draft, row, failed_in, row.error)
            else:
                fail_step(draft, row, row.error, failed_in)
        else:
            capture(draft, row, child)
    elif row.open == 0:
        if row.failed:
            fail_step(draft, row, row.error or first_error(draft, row), row.state)
        elif child.kind is MIXIN:
            row.params = {**row.params, child.name: attributes(draft, child)}
            continue_after_script(draft, row, child.ordinal + 1)
        else:
            capture(draft, row)


def capture(draft: Draft, row: StepRow, catch: StepRow | None = None) -> None:
    """Merge the yields of the completed blocks (and the catch) into the returns, add defaults, and complete the step."""
    blocks = _body(draft, row) if row.failed_in in (None, STATEMENT_BLOCKS_CONTINUE, STATEMENT_CAPTURE_BEGIN) else ()
    returns = dict(row.returns)
    facet = draft.plan.facet(row.facet)
    for name, value in _merged(draft, row, blocks, catch).items() if blocks or catch is not None else ():
        if facet and name in facet.alias_names and isinstance(value, dict) and isinstance(row.params.get(name), dict):
            value = {**row.params[name], **value}
        returns[name] = value
    try:
        returns |= return_defaults(draft, facet, row.params, returns)
    except EvaluationError as error:
        fail_step(draft, row, error_in(row, error), row.failed_in or STATEMENT_CAPTURE_BEGIN)
        return
    row.returns = returns
    draft.complete(row)


def _merged(draft: Draft, row: StepRow, blocks: tuple[Block, ...], catch: StepRow | None) -> dict[str, Value]:
    merge = Merge(draft)
    for number, block in enumerate(blocks):
        child = draft.find_child(row, f"block-{number}")
        if child is not None and child.state is STATEMENT_COMPLETE:
            merge.add_all(child.returns, draft.plan.block(block).aliases)
    if catch is not None:
        merge.add_all(catch.returns, draft.plan.block(draft.block_of(catch)).aliases)
    return merge.finish()


# --- errors --------------------------------------------------------------------------------------------------------


def fail_step(draft: Draft, row: StepRow, error: StepError, failed_in: State) -> None:
    """Enter the next catch clause, or fail."""
    row.error, row.failed_in = error, failed_in
    numbered_clause = next_catch(draft, row, failed_in)
    if numbered_clause is None:
        draft.fail(row, error, failed_in)
        return
    if draft.stopping:
        withdraw(draft, row, failed_in, error)
        return
    number, clause = numbered_clause
    _assume_defaults(draft, row)
    row.state, row.caught = CATCH_CONTINUE, number + 1
    catch = draft.create(row, catch_name(row, number), CATCH, clause.id, ordinal=number)
    catch.params = {"error": error.message, "error_type": error.type}


def catch_name(row: StepRow, number: int) -> str:
    """Return the last segment of a catch block's place; after a retry it is a new one, and the old one stays as history."""
    return f"catch-{number}-{row.round}" if row.round else f"catch-{number}"


# --- limits that stop a run as a whole; an endless recursion ends at one ---------------------------------------------

_SHOWN = 5


def check_limits(draft: Draft, row: StepRow) -> None:
    """Raise `LimitReached` if the step is nested too deep, or one too many."""
    limits = draft.limits
    if row.depth > limits.depth:
        message, kind = f"steps are nested more than {limits.depth} deep", "too_deep"
    elif draft.run.rows + len(draft.created) > limits.total_rows:
        message, kind = f"the run has more than {limits.total_rows} rows (steps, blocks and items)", "too_many_rows"
    else:
        return
    raise LimitReached(row, message + (_recursion(draft, row) or f"; the latest calls `{row.facet}`"), kind)


def check_growth(draft: Draft, row: StepRow, error: EvaluationError) -> None:
    """Raise `LimitReached` if the arguments of a recursive call have become too large: its siblings would grow as large."""
    if error.type == "value_too_large" and (recursion := _recursion(draft, row)):
        raise LimitReached(row, error.message + recursion, error.type)


def _recursion(draft: Draft, row: StepRow) -> str:
    """Return the end of a message: the innermost facet that calls itself, and those through which it does; empty if none does."""
    chain = []
    outer: StepRow | None = row
    while outer is not None:
        chain += [outer.facet] if outer.facet is not None else []
        outer = None if outer.parent_id is None else draft.get(outer.parent_id)
    for place, facet in enumerate(chain):
        if facet in chain[place + 1 :]:
            between = reversed(chain[place + 1 : chain.index(facet, place + 1)])
            through = ", ".join(f"`{name}`" for name in list(dict.fromkeys(between))[:_SHOWN])
            return f"; does `{facet}` call itself endlessly{f' through {through}' if through else ''}?"
    return ""
