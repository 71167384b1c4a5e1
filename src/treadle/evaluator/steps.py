"""A step from its parameters to its returns: pre-script, aliases, handler, blocks, capture; and catch."""

from __future__ import annotations

from contextlib import suppress

from treadle.evaluator.blocks import count_settled, first_error
from treadle.evaluator.capture import Merge
from treadle.evaluator.doom import next_catch, withdraw
from treadle.evaluator.draft import Draft, error_in, stopped_at
from treadle.evaluator.expressions import evaluate
from treadle.evaluator.operators import EvaluationError
from treadle.evaluator.parameters import given_at_call, retry_of, return_defaults, timeout_of, with_defaults
from treadle.evaluator.records import StepError, StepRow, Value
from treadle.evaluator.recursion import check_growth, check_limits
from treadle.evaluator.scope import BlockScope, Scope, SignatureScope, attributes
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
from treadle.evaluator.waits import await_handler, await_script
from treadle.lang.program import Block, Mixin, Step


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
    scope: Scope
    given: dict[str, Value]
    if isinstance(statement, Step):
        mixins = statement.call.mixins
        scope = BlockScope(draft, draft.get(row.parent_id or ""))
        if statement.call.is_value:
            given = {arg.name: evaluate(arg.value, scope) for arg in statement.call.args}
        else:
            given = given_at_call(statement.call.args, mixins, scope)
    elif isinstance(statement, Mixin):
        scope = SignatureScope(draft, draft.get(row.parent_id or "").params)
        given = given_at_call(statement.args, (), scope)
    else:
        scope, given = SignatureScope(draft, {}), row.params
    facet = draft.plan.facet(row.facet)
    schema = draft.plan.program.find_schema(row.facet or "") if facet is None and row.kind is SCHEMA else None
    row.params = with_defaults(draft, facet or schema, given, draft.plan.program.namespace_of(row.statement_id))
    draft.sizes.check_sum(*row.params.values())
    if facet is not None and facet.is_event and (mixins or facet.has_options):
        row.timeout_for = timeout_of(draft, mixins, scope, facet.facet, row.params)
        row.policy = retry_of(draft, mixins, scope, facet.facet, row.params)


# --- the stages ----------------------------------------------------------------------------------------------------


def continue_after_script(draft: Draft, row: StepRow, first: int = 0) -> None:
    """Run the signature's aliases one after another (a later one may read an earlier one), starting with `first`."""
    facet = draft.plan.facet(row.facet)
    for number, mixin in facet.aliases if facet else ():
        if number >= first:
            row.state = MIXIN_BLOCKS_CONTINUE
            draft.create(row, mixin.alias or "", MIXIN, mixin.id, ordinal=number, facet=mixin.name)
            return
    if facet is not None and facet.is_event:
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
    if facet is not None and (facet.is_event or (isinstance(statement, Step) and (statement.body or statement.catch))):
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
    found = next_catch(draft, row, failed_in)
    if found is None:
        draft.fail(row, error, failed_in)
        return
    if draft.stopping:
        withdraw(draft, row, failed_in, error)
        return
    number, clause = found
    _assume_defaults(draft, row)
    row.state, row.caught = CATCH_CONTINUE, number + 1
    catch = draft.create(row, catch_name(row, number), CATCH, clause.id, ordinal=number)
    catch.params = {"error": error.message, "error_type": error.type}


def catch_name(row: StepRow, number: int) -> str:
    """Return the last segment of a catch block's place; after a retry it is a new one, and the old one stays as history."""
    return f"catch-{number}-{row.round}" if row.round else f"catch-{number}"
