"""Finds the pending work of a run: rows that need a task, and blocks that must continue."""

from __future__ import annotations

from collections.abc import Iterable

from treadle.evaluator.draft import Draft
from treadle.evaluator.plan import plan_of
from treadle.evaluator.records import Limits, RunRef, StepRow, View
from treadle.evaluator.states import State
from treadle.evaluator.waits import is_waiting
from treadle.lang.program import Program


def open_ends(program: Program, run: RunRef, rows: Iterable[StepRow]) -> tuple[list[StepRow], list[StepRow]]:
    """Return, of all rows of a run, those that wait for a task, and the blocks that wait for an `Expand`."""
    draft = Draft(plan_of(program), run, View(), Limits())
    live = [row for row in rows if not row.is_terminal]
    return [row for row in live if is_waiting(draft, row)], [row for row in live if has_more(draft, row)]


def has_more(draft: Draft, row: StepRow) -> bool:
    """Return whether a block waits for its turn, or has more items to create."""
    if row.is_step or row.is_terminal:
        return False
    if row.state is State.BLOCK_EXECUTION_BEGIN:
        return draft.block_of(row).script is None
    return row.total is not None and row.expanded < row.total and not draft.is_stopped(row)
