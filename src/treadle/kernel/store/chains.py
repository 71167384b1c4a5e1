"""Chains of runs that `ctx.continue_as_new` makes. The id of any link names the chain: calls reach its current run.

A writer that loses to a continuation reads the chain again, so nothing is sent to a run that has just been continued.
"""

from __future__ import annotations

from treadle.kernel.store.ports import Store
from treadle.model.ids import derived_id
from treadle.model.runs import Run
from treadle.model.states import RunState


def continued_id(run_id: str) -> str:
    """The id of the run that continues this one (`ctx.continue_as_new`)."""
    return derived_id(run_id, "continued")


async def current_run(store: Store, run: Run) -> Run:
    """Return the last run of the chain; the run itself if nothing continued it.

    One indexed read for a chain of any length. Links that an older version made have no chain id: these are followed one by one.
    """
    while run.state == RunState.COMPLETED and run.kind == "function" and not _returned(run):
        found = await store.runs.find_last_link(run.chain_id or run.id) or await store.runs.find(continued_id(run.id))
        if found is None or found.id == run.id:
            break
        run = found
    return run


def _returned(run: Run) -> bool:
    """Whether the stored outputs show that the function returned a value, so nothing can continue it.

    The outputs of a continued run are `continued_as` only. Outputs that are stored elsewhere or erased do not show it.
    """
    return run.outputs is not None and run.outputs.startswith('{"result":')
