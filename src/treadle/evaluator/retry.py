"""An operator's retry: failed and withdrawn rows continue from where they failed, and all of their ancestors wait again.

Dependents of a failed step were never created, so nothing has to be undone. A failure that a catch has handled, or is
handling, cannot be retried: the run has moved on from it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from treadle.evaluator.blocks import begin_block, finish_block
from treadle.evaluator.draft import Draft, Missing, collecting, is_fail_fast, task_id_of, wait_again
from treadle.evaluator.records import StepError, StepRow
from treadle.evaluator.states import State, StepKind
from treadle.evaluator.steps import capture, catch_name
from treadle.model.states import RunState

_BY_TASK = (State.EVENT_TRANSMIT, State.FACET_SCRIPTS_BEGIN, State.BLOCK_EXECUTION_BEGIN)
_BY_CHILDREN = (State.MIXIN_BLOCKS_CONTINUE, State.STATEMENT_BLOCKS_CONTINUE, State.BLOCK_EXECUTION_CONTINUE)


def retry(draft: Draft, row: StepRow) -> str | None:
    """Retry a failed row, or everything that failed below a row; return the reason of a refusal."""
    root = draft.get(draft.run.root_id)
    if root.state is State.STATEMENT_ERROR and root.open:
        return "the run was stopped at a limit; start it again"
    refusal = _refusal(draft, row) if row.state is State.STATEMENT_ERROR else None
    if refusal is not None:
        return refusal
    causes = [*_causes(draft, [row]), *stopped_beside(draft, row)]
    if not causes:
        return f"`{row.path}` has not failed"
    unexpanded = _unexpanded(draft, root) if draft.stopping else []
    draft.edit(root.id).doom = None
    resume(draft, causes, withdrawn=root.stops)
    draft.again |= dict.fromkeys(unexpanded)
    return None


def resume(draft: Draft, leaves: Iterable[StepRow], *, withdrawn: bool = False) -> None:
    """Let failed rows continue, and all that the run withdrew: all of them wait again before the first one starts.

    Withdrawn rows continue even if other failures remain: in a run that goes on, a catch would take them for failures.
    """
    unique = {leaf.id: leaf for leaf in leaves}
    for leaf in unique.values():
        _reopen_above(draft, leaf)
    causes = _causes(draft, [draft.get(draft.run.root_id)]) if withdrawn else []
    rest = {leaf.id: leaf for leaf in causes if leaf.id not in unique and _is_withdrawn(draft, leaf)}
    for leaf in rest.values():
        _reopen_above(draft, leaf)
    for leaf_id in unique | rest:
        _again(draft, draft.edit(leaf_id))


def _is_withdrawn(draft: Draft, row: StepRow) -> bool:
    """Return whether a failed row, or a step above it that would have caught its failure, was withdrawn."""
    ancestor: StepRow | None = row
    while ancestor is not None and ancestor.state is State.STATEMENT_ERROR:
        if ancestor.error is not None and ancestor.error.stopped:
            return True
        ancestor = None if ancestor.parent_id is None else draft.get(ancestor.parent_id)
    return False


def stopped_beside(draft: Draft, row: StepRow) -> list[StepRow]:
    """Return the rows that did not start because an item of a `failFast` foreach around this row had failed."""
    leaves: list[StepRow] = []
    while draft.plan.fails_fast and row.parent_id is not None:
        row = draft.get(row.parent_id)
        if row.total is not None and is_fail_fast(draft.block_of(row)):
            failed = [child for child in draft.children(row) if child.state is State.STATEMENT_ERROR]
            leaves += [leaf for leaf in _causes(draft, failed) if leaf.error is not None and leaf.error.stopped]
    return leaves


def _refusal(draft: Draft, row: StepRow) -> str | None:
    child = row
    while child.parent_id is not None:
        parent = draft.get(child.parent_id)
        if parent.state in (State.CATCH_CONTINUE, State.STATEMENT_COMPLETE):
            return f"`{parent.path}` has caught this failure and moved on"
        if child.kind is StepKind.CATCH and (
            parent.state is not State.STATEMENT_ERROR or child.name != catch_name(parent, parent.caught - 1)
        ):
            return f"`{parent.path}` has been retried since"
        if parent.state is not State.STATEMENT_ERROR:
            return None
        child = parent
    return None


def _causes(draft: Draft, rows: list[StepRow]) -> list[StepRow]:
    """Return the rows that caused the failures that nothing has handled, at or below these rows."""
    causes: list[StepRow] = []

    def below(row: StepRow, children: list[StepRow]) -> list[StepRow]:
        failed = [child for child in children if child.state is State.STATEMENT_ERROR and child.kind is not StepKind.CATCH]
        handled = row.state is State.CATCH_CONTINUE or (
            not row.is_step and not row.is_terminal and collecting(draft.block_of(row), row) is not None
        )
        return [*([] if handled else failed), *(child for child in children if not child.is_terminal)]

    def wanted(row: StepRow) -> bool:
        if is_cause(row):
            causes.append(row)
            return False
        return row.state is not State.STATEMENT_COMPLETE

    _descend(draft, rows, wanted, below)
    return causes


def _unexpanded(draft: Draft, root: StepRow) -> list[str]:
    """Return the open foreach blocks that have stopped creating items."""
    row_ids: list[str] = []

    def wanted(row: StepRow) -> bool:
        if row.total is not None and row.expanded < row.total:
            row_ids.append(row.id)
        return not row.is_terminal

    _descend(draft, [root], wanted, lambda _, children: [child for child in children if not child.is_terminal])
    return row_ids


def _descend(
    draft: Draft,
    level: list[StepRow],
    wanted: Callable[[StepRow], bool],
    below: Callable[[StepRow, list[StepRow]], list[StepRow]],
) -> None:
    """Visit rows, and below each wanted row the chosen children, by level, with one `Need` per level."""
    while level:
        chosen: list[StepRow] = []
        missing: list[str] = []
        for row in level:
            if not wanted(row):
                continue
            try:
                chosen += below(row, draft.children(row))
            except Missing as unseen:
                missing += unseen.children_of
        if missing:
            raise Missing(children_of=missing)
        level = chosen


def is_cause(row: StepRow) -> bool:
    """Return whether a row failed, or was withdrawn, of itself and not because of its children."""
    return row.state is State.STATEMENT_ERROR and (row.failed == 0 or row.failed_in not in _BY_CHILDREN)


def _reopen_above(draft: Draft, row: StepRow) -> None:
    """Let all failed ancestors wait again, with one failure less and one open child more."""
    child = row
    while child.parent_id is not None:
        parent = draft.edit(child.parent_id)
        parent.open += 1
        if parent.total is not None and parent.expanded < parent.total:
            draft.again[parent.id] = None
        caught = child.kind is StepKind.CATCH
        if not caught:
            parent.failed -= 1
            if parent.failed == 0 or parent.failed_first == child.ordinal or parent.caught:
                parent.failed_first, parent.error = None, None
        if parent.state is not State.STATEMENT_ERROR:
            return
        parent.state = waits_for(child)
        if caught:
            parent.error = StepError(
                message=child.params["error"], type=child.params["error_type"], path=parent.path, step_id=parent.id
            )
        else:
            parent.failed_in, parent.caught, parent.round = None, 0, parent.round + 1
        child = parent
    draft.status = RunState.RUNNING


_WAITS = {
    StepKind.MIXIN: State.MIXIN_BLOCKS_CONTINUE,
    StepKind.BLOCK: State.STATEMENT_BLOCKS_CONTINUE,
    StepKind.CATCH: State.CATCH_CONTINUE,
}


def waits_for(child: StepRow) -> State:
    """Return the state in which a row waits for the child."""
    return _WAITS.get(child.kind, State.BLOCK_EXECUTION_CONTINUE)


def _again(draft: Draft, row: StepRow) -> None:
    """Continue from where the row failed."""
    failed_in = row.failed_in
    if failed_in in _BY_TASK:
        draft.dismissed.append(task_id_of(row, "event" if failed_in is State.EVENT_TRANSMIT else "script"))
    row.error, row.failed_in, row.caught, row.round = None, None, 0, row.round + 1
    if not row.is_step:
        if failed_in is State.BLOCK_EXECUTION_BEGIN:
            begin_block(draft, row)
        else:
            row.state = State.BLOCK_EXECUTION_CONTINUE
            if row.total is not None and row.expanded < row.total:
                draft.again[row.id] = None
            else:
                finish_block(draft, row)
        return
    if failed_in in (State.EVENT_TRANSMIT, State.FACET_SCRIPTS_BEGIN):
        row.state = failed_in
        wait_again(draft, row)
    elif failed_in is State.STATEMENT_CAPTURE_BEGIN:
        row.state = State.STATEMENT_BLOCKS_CONTINUE
        capture(draft, row)
    else:
        row.state = State.CREATED
        draft.agenda.append(("begin", row.id))
