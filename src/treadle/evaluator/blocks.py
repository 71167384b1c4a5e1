"""Blocks: statements as soon as their dependencies are complete, foreach items in batches, cases, scripts; then the yields."""

from __future__ import annotations

from collections.abc import Mapping

from treadle.evaluator.draft import Draft, Missing, await_script, collecting, error_in, stopped_at, withdraw
from treadle.evaluator.expressions import BlockScope, SignatureScope, evaluate_condition, evaluate_json, evaluate_named
from treadle.evaluator.operators import EvaluationError, describe
from treadle.evaluator.records import BlobRef, LogEntry, StepError, StepRow, Value
from treadle.evaluator.states import (
    BLOCK_EXECUTION_BEGIN,
    BLOCK_EXECUTION_CONTINUE,
    CASE,
    CATCH,
    ITEM,
    SCHEMA,
    STATEMENT_COMPLETE,
    STATEMENT_ERROR,
    STEP,
)
from treadle.lang.nodes import Arg, Block, Foreach, Step, Sys
from treadle.model.values import Json


def begin_block(draft: Draft, row: StepRow) -> None:
    """Begin a block, item, case or catch; if the call has reached its row limit, leave it for another call."""
    block = draft.block_of(row)
    if draft.is_stopped(row):
        draft.fail(row, stopped_at(row), BLOCK_EXECUTION_BEGIN)
        return
    if block.script is not None and row.parent_id is not None:
        await_script(draft, row, block.script, draft.get(row.parent_id))
        return
    row.state = BLOCK_EXECUTION_BEGIN
    if draft.full:
        draft.again[row.id] = None
        return
    try:
        if block.foreach is not None and row.kind is not ITEM:
            _begin_foreach(draft, row, block, block.foreach)
        elif block.when:
            _begin_cases(draft, row, block)
        else:
            _begin_statements(draft, row, block)
    except EvaluationError as error:
        draft.fail(row, error_in(row, error), BLOCK_EXECUTION_BEGIN)


def _begin_statements(draft: Draft, row: StepRow, block: Block) -> None:
    row.state = BLOCK_EXECUTION_CONTINUE
    for statement in draft.plan.block(block).first:
        _start(draft, row, statement)
    if row.open == 0:
        finish_block(draft, row)


def _start(draft: Draft, row: StepRow, statement: Step | Sys) -> None:
    if isinstance(statement, Sys):
        _log(draft, row, statement)
        return
    plan = draft.plan.block(draft.block_of(row))
    kind = SCHEMA if statement.name in plan.records else STEP
    draft.create(row, statement.name, kind, statement.id, ordinal=plan.order[statement.name], facet=statement.call.name)


def _log(draft: Draft, row: StepRow, statement: Sys) -> None:
    """Emit the entry of a `sys.log` once; a missing value is logged as missing and does not fail the block."""
    if (row.id, statement.id) in draft.logged:
        return
    draft.logged.add((row.id, statement.id))
    scope = BlockScope(draft, row)
    values: dict[str, Json] = {}
    for arg in statement.args:
        try:
            values[arg.name] = value = evaluate_json(arg.value, scope)
            draft.sizes.check_sum(value)
        except EvaluationError as error:
            values[arg.name] = f"<{error.message}>"
    at = statement.location
    draft.logs.append(
        LogEntry(step_id=row.id, path=row.path, values=values, line=at.line if at else None, source=at.source if at else None)
    )


# --- foreach and when ----------------------------------------------------------------------------------------------


def _begin_foreach(draft: Draft, row: StepRow, block: Block, foreach: Foreach) -> None:
    elements = _elements(draft, row, foreach)
    limit = draft.limits.total_rows
    if draft.run.rows + len(draft.created) + len(elements) > limit:
        raise EvaluationError(
            f"foreach `{foreach.variable}` has {len(elements)} elements; a run may have {limit} rows", "too_many_rows"
        )
    row.state, row.total = BLOCK_EXECUTION_CONTINUE, len(elements)
    expand(draft, row, block, foreach, elements)


def _elements(draft: Draft, row: StepRow, foreach: Foreach) -> list[Json]:
    """Return the list to loop over: always the same, because none of its inputs changes while the block runs."""
    try:
        value = evaluate_json(foreach.iterable, BlockScope(draft, row))
    except EvaluationError as error:
        raise error.within(f"foreach `{foreach.variable}`") from None
    if value is None:
        return []
    if not isinstance(value, list):
        raise EvaluationError(f"foreach `{foreach.variable}` needs a list, this is {describe(value)}", "foreach_error")
    return value


def expand(draft: Draft, row: StepRow, block: Block, foreach: Foreach, elements: list[Json] | None = None) -> None:
    """Create the next items, up to the limit of one call."""
    elements = _elements(draft, row, foreach) if elements is None else elements
    total = row.expanded if draft.is_stopped(row) else row.total or 0
    stop = min(total, row.expanded + draft.limits.expand)
    while row.expanded < stop:
        index = row.expanded
        draft.create(row, f"foreach-{index}", ITEM, block.id, ordinal=index, loop={foreach.variable: elements[index]})
        row.expanded += 1
        if draft.full:
            break
    if row.expanded < total:
        draft.agenda.append(("more", row.id))
    elif row.open == 0:
        finish_block(draft, row)


def _begin_cases(draft: Draft, row: StepRow, block: Block) -> None:
    scope = BlockScope(draft, row)
    chosen: list[int] = []
    for number, case in enumerate(block.when):
        if case.condition is not None and evaluate_condition(case.condition, scope, f"case {number + 1}"):
            chosen.append(number)
    if not chosen:
        chosen = [number for number, case in enumerate(block.when) if case.condition is None]
    row.state = BLOCK_EXECUTION_CONTINUE
    for number in chosen:
        draft.create(row, f"when-case-{number}", CASE, block.when[number].block.id, ordinal=number)
    if not chosen:
        finish_block(draft, row)


# --- continuation --------------------------------------------------------------------------------------------------


def count_settled(parent: StepRow, child: StepRow) -> None:
    """Record on the parent that a child is terminal, keeping the error of the first failed child by ordinal.

    A withdrawn child counts after all that failed.
    """
    parent.open -= 1
    if child.state is not STATEMENT_ERROR or child.kind is CATCH:
        return
    parent.failed += 1
    if parent.failed_first is None or _rank(child.error, child.ordinal) < _rank(parent.error, parent.failed_first):
        if parent.failed_first is None and parent.failed > 1:
            return  # others failed before, and a retry removed the displayed error: search again at the end
        parent.failed_first, parent.error = child.ordinal, child.error


def _rank(error: StepError | None, ordinal: int) -> tuple[bool, int]:
    """Order failed children: the first one, but those that only did not start come last."""
    return error is not None and error.stopped, ordinal


def child_settled(draft: Draft, row: StepRow, child: StepRow) -> None:
    """Handle a terminal step, item or case: start its dependents, or finish the block when nothing can move."""
    count_settled(row, child)
    if child.state is STATEMENT_COMPLETE and child.kind in (STEP, SCHEMA):
        for statement in draft.plan.block(draft.block_of(row)).after.get(child.name, ()):
            if all(name == child.name or _is_complete(draft, row, name) for name in statement.depends):
                if isinstance(statement, Step) and draft.find_child(row, statement.name) is not None:
                    continue
                _start(draft, row, statement)
    if row.open == 0 and (row.total is None or row.expanded >= row.total or draft.stopping or draft.is_stopped(row)):
        finish_block(draft, row)


def _is_complete(draft: Draft, row: StepRow, name: str) -> bool:
    child = draft.find_child(row, name)
    return child is not None and child.state is STATEMENT_COMPLETE


def finish_block(draft: Draft, row: StepRow) -> None:
    """Finish a block in which nothing can move: fail with the first failure, or check the asserts and merge the yields."""
    block = draft.block_of(row)
    collects = collecting(block, row)
    if row.failed and collects is None:
        draft.fail(row, row.error or first_error(draft, row), BLOCK_EXECUTION_CONTINUE)
        return
    if row.total is not None and _was_cut(draft, row):
        if draft.stopping:
            withdraw(draft, row, BLOCK_EXECUTION_CONTINUE)
        else:
            draft.fail(row, stopped_at(row), BLOCK_EXECUTION_CONTINUE)
        return
    merge = Merge(draft)
    scope = BlockScope(draft, row)
    try:
        if block.when or (block.foreach is not None and row.kind is not ITEM):
            plan = draft.plan.block(block)
            if collects is not None:
                merge.add(collects, [])
                row.error = row.failed_first = None
            for child in draft.children(row) if block.when or block.yields or row.failed else ():
                if collects is not None and child.state is STATEMENT_ERROR:
                    merge.add(collects, [_collected(draft, child)])
                else:
                    merge.add_all(child.returns, plan.aliases)
        else:
            _check_asserts(draft, block, scope)
            merge.add_yields(block, scope)
    except EvaluationError as error:
        draft.fail(row, error_in(row, error), BLOCK_EXECUTION_CONTINUE)
        return
    row.returns = merge.finish()
    draft.complete(row)


def _was_cut(draft: Draft, row: StepRow) -> bool:
    """Return whether items of a foreach are missing or did not start, because the run or a foreach around it was stopped."""
    if row.expanded < (row.total or 0):
        return True
    stopped = draft.stopping or draft.is_stopped(row)
    return stopped and any(child.error is not None and child.error.stopped for child in draft.children(row))


def _collected(draft: Draft, item: StepRow) -> dict[str, Json]:
    """Return the entry of a failed item."""
    (element,) = item.loop.values()
    error = item.error or stopped_at(item)
    return {"index": item.ordinal, "item": draft.load(element), "error": error.message, "error_type": error.type}


def _check_asserts(draft: Draft, block: Block, scope: BlockScope) -> None:
    for statement in draft.plan.block(block).asserts:
        if statement.condition is None:
            continue
        if not evaluate_condition(statement.condition, scope, "sys.assert"):
            line = f" (line {statement.location.line})" if statement.location else ""
            raise EvaluationError(f"assertion failed: {statement.text}{line}", "assertion_failed")


def first_error(draft: Draft, row: StepRow) -> StepError:
    """Return the error of the first failed child."""
    failed = [child for child in draft.children(row) if child.state is STATEMENT_ERROR]
    first = min(failed, key=lambda child: _rank(child.error, child.ordinal), default=None)
    if first is not None and first.error is not None:
        return first.error
    return StepError(message="a step failed", type="evaluation_error", path=row.path, step_id=row.id)


# --- yielded values --------------------------------------------------------------------------------------------------


class Merge:
    """The merged values so far. Values for a signature alias are grouped under the alias."""

    def __init__(self, draft: Draft) -> None:
        self.values: dict[str, Value] = {}
        self._draft = draft
        self._own: dict[tuple[str | None, str], list[Value]] = {}
        self._sizes: dict[tuple[str | None, str], int] = {}
        """Bytes of the lists in `_own`."""
        self._missing: list[str] = []

    def add(self, name: str, value: Value, into: str | None = None) -> None:
        """Add one value; `into` is the alias to which it was yielded."""
        values = self.values if into is None else self.values.setdefault(into, {})
        if name not in values:
            values[name] = value
            return
        values[name] = self._join((into, name), values[name], value)

    def _join(self, key: tuple[str | None, str], before: Value, value: Value) -> Value:
        """Merge two values of one name. Lists are copied once and then extended, so that the total cost stays linear."""
        if not (_may_be_list(before) and _may_be_list(value)):
            return value
        first, second = self._load(before), self._load(value)
        if not isinstance(first, list) or not isinstance(second, list):
            return value
        sizes = self._draft.sizes
        own = self._own.get(key)
        if own is not first:
            own = self._own[key] = list(first)
            self._sizes[key] = sizes.of(first)
        added = sizes.of(second)
        self._sizes[key] += added
        sizes.check(self._sizes[key])
        sizes.count(added)
        own.extend(second)
        return own

    def _load(self, value: Value) -> Json:
        """Load the value behind a reference. A missing one counts as a list for now; one `Need` requests all of them."""
        try:
            return self._draft.load(value)
        except Missing as unseen:
            self._missing += unseen.blobs
            return []

    def finish(self) -> dict[str, Value]:
        """Return the merged values."""
        if self._missing:
            raise Missing(blobs=self._missing)
        return self.values

    def add_all(self, returns: Mapping[str, Value], aliases: frozenset[str]) -> None:
        """Add the values that a block has already merged."""
        for name, value in returns.items():
            if name in aliases:
                for attribute, inner in self._draft.load(value).items():
                    self.add(attribute, inner, name)
            else:
                self.add(name, value)

    def add_yields(self, block: Block, scope: SignatureScope) -> None:
        """Add all yields of a block, in order; they carry only their written arguments."""
        for statement in block.yields:
            self._add_args(statement.call.args, statement.into, scope)
            for mixin in statement.call.mixins:
                self._add_args(mixin.args, mixin.into, scope)

    def _add_args(self, args: tuple[Arg, ...], into: str | None, scope: SignatureScope) -> None:
        for arg in args:
            value = evaluate_named(arg.name, arg.value, scope, "yield of")
            self.add(arg.name, value if into is None else self._draft.load(value), into)


def _may_be_list(value: Value) -> bool:
    return value.is_list is not False if isinstance(value, BlobRef) else isinstance(value, list)
