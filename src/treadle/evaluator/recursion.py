"""The limits that stop a run as a whole: nested steps, rows, and values of recursive calls. An endless recursion ends at one."""

from __future__ import annotations

from treadle.evaluator.draft import Draft, LimitReached
from treadle.evaluator.operators import EvaluationError
from treadle.evaluator.records import StepRow

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
            through = ", ".join(f"`{each}`" for each in list(dict.fromkeys(between))[:_SHOWN])
            return f"; does `{facet}` call itself endlessly{f' through {through}' if through else ''}?"
    return ""
