"""Tasks that are born taken: which of a commit's new tasks have somebody who wants to hold them from the start."""

from __future__ import annotations

from collections.abc import Sequence

from treadle.kernel.store.units import Answer, Unit, Verdict

Birth = tuple[str, str, int]
"""The id of a new task, its owner, and milliseconds of lease."""


def has_births(units: Sequence[Unit]) -> bool:
    """Whether any new task of the units is to be born taken."""
    return any(task.born is not None for unit in units for task in unit.tasks)


def list_births(units: Sequence[Unit], answers: Sequence[Answer]) -> list[Birth]:
    """Those of the units that were done."""
    return [
        (task.id, task.born.owner_id, task.born.lease_for)
        for unit, answer in zip(units, answers, strict=True)
        if answer.verdict is Verdict.DONE
        for task in unit.tasks
        if task.born is not None
    ]
