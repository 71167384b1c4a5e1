"""The limits that stop a run as a whole: nested steps, and rows. Both are how an endless recursion ends."""

from __future__ import annotations

from treadle.evaluator.draft import Draft, LimitReached
from treadle.evaluator.records import StepRow

_SHOWN = 5


def check_limits(draft: Draft, row: StepRow) -> None:
    """Raise `LimitReached` if the step is nested too deep, or one too many."""
    limits = draft.limits
    if row.depth > limits.depth:
        raise LimitReached(row, f"steps are nested more than {limits.depth} deep{_recursion(draft, row)}", "too_deep")
    if draft.run.rows + len(draft.created) > limits.total_rows:
        message = f"the run has more than {limits.total_rows} rows (steps, blocks and items){_recursion(draft, row)}"
        raise LimitReached(row, message, "too_many_rows")


def _recursion(draft: Draft, row: StepRow) -> str:
    """Return the end of a message: the innermost facet that calls itself, and those through which it does."""
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
    return f"; the latest calls `{row.facet}`"
