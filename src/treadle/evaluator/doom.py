"""Failures that no catch handles: from then on the run cannot succeed, and unless it was started otherwise, it starts nothing new.

Rows that would begin are withdrawn instead: they fail with the type `not_started`, so that a retry of the run begins them. Rows
that wait for a task wait until it ends; the kernel withdraws the tasks that have not begun.
"""

from __future__ import annotations

from treadle.evaluator.draft import Draft
from treadle.evaluator.records import NOT_STARTED, StepError, StepRow
from treadle.evaluator.states import CATCH_CONTINUE, FACET_INIT_BEGIN, ITEM, State
from treadle.lang.program import Block, Step


def next_catch(draft: Draft, row: StepRow, failed_in: State) -> tuple[int, Block] | None:
    """Return the catch clause of a step that handles its next failure (the facet's, then its own), and its number.

    A facet's catch does not see errors of arguments, because those belong to its caller; a step's own catch sees all.
    """
    if draft.is_stopped(row):
        return None
    statement = draft.statement_of(row)
    facet = draft.facet_of(row)
    inner = facet.catch if facet is not None and failed_in is not FACET_INIT_BEGIN else None
    clauses = (inner, statement.catch if isinstance(statement, Step) else None)
    return next(((n, clause) for n, clause in enumerate(clauses) if n >= row.caught and clause is not None), None)


def collecting(block: Block, row: StepRow) -> str | None:
    """Return the return that collects the errors of a foreach's items, if it collects them."""
    return block.foreach.failed if block.foreach is not None and row.kind is not ITEM else None


def is_handled(draft: Draft, row: StepRow) -> bool:
    """Return whether a catch or a collecting foreach above a failed row will handle the failure, or its own catch does so now."""
    if draft.stopping:
        return False
    if row.state is CATCH_CONTINUE:
        return True
    while row.parent_id is not None:
        row = draft.get(row.parent_id)
        if row.is_step and next_catch(draft, row, row.state) is not None:
            return True
        if not row.is_step and collecting(draft.block_of(row), row) is not None and not draft.is_stopped(row):
            return True
    return False


def note_failure(draft: Draft, row: StepRow) -> None:
    """Record on the root that the run cannot succeed, if nothing above a failed row handles the failure.

    Of several failures, the one with the first path: the record does not depend on their order.
    """
    doom, error = draft.get(draft.run.root_id).doom, row.error
    known = doom is not None and (draft.stopping or error is None or doom.path <= error.path)
    if not known and not (error is not None and error.stopped) and not is_handled(draft, row):
        root = draft.edit(draft.run.root_id)
        root.doom, draft.doomed = error, root.stops


def withdraw(draft: Draft, row: StepRow, failed_in: State, uncaught: StepError | None = None) -> None:
    """End a row that has not begun, or whose catch has not begun to handle `uncaught`; a retry continues in `failed_in`."""
    doom = draft.get(draft.run.root_id).doom
    message = f"not started, because the run will fail: {doom.text if doom else ''}"
    if uncaught is not None:
        message = f"{uncaught.message} (not caught, because the run will fail)"
    draft.fail(row, StepError(message=message, type=NOT_STARTED, path=row.path, step_id=row.id, stopped=True), failed_in)
