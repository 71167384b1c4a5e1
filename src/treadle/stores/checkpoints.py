"""Checkpoints: units that store steps under a claim and leave all else as it is. They are many, so each store has a short way."""

from __future__ import annotations

from collections.abc import Sequence

from treadle.kernel.store.units import DONE, Answer, PutSteps, Unit, Verdict
from treadle.model.states import Hold
from treadle.model.tasks import Claim

HELD = Answer(Verdict.DONE, held=True)
"""Done, and the task was held meanwhile."""


def kept_answer(hold: int) -> Answer:
    """The answer to a unit whose claim stays, by the bits of its task's hold."""
    return HELD if hold & Hold.RUN_PAUSED else DONE


def is_checkpoint(unit: Unit) -> bool:
    """Whether the unit has a claim that stays, and steps, and nothing else."""
    return (
        type(unit.guard) is Claim
        and unit.settlement is None
        and unit.run is None
        and bool(unit.rows)
        and not unit.tasks
        and not unit.also
        and all(type(row) is PutSteps and row.steps for row in unit.rows)
    )


def list_checkpoints(units: Sequence[Unit]) -> list[int]:
    """The positions of checkpoints of tasks that no other kind of unit is about: when these are done makes no difference."""
    found = [position for position, unit in enumerate(units) if is_checkpoint(unit)]
    if not found or len(found) == len(units):
        return found
    alone = set(found)
    others = [unit for position, unit in enumerate(units) if position not in alone]
    named = {unit.guard.task_id for unit in others if unit.guard} | {claim.task_id for unit in others for claim, _ in unit.also}
    return [position for position in found if (guard := units[position].guard) and guard.task_id not in named]
