"""Preclaimed tasks: new tasks of a commit that are inserted with an owner."""

from __future__ import annotations

from collections.abc import Sequence

from treadle.kernel.store.units import Answer, Unit, Verdict

Birth = tuple[str, str, int]
"""The id of a new task, its owner, and milliseconds of lease."""


def has_births(units: Sequence[Unit]) -> bool:
    """Whether any new task of the units is preclaimed."""
    return any(task.preclaimed is not None for unit in units for task in unit.tasks)


def list_births(units: Sequence[Unit], answers: Sequence[Answer]) -> list[Birth]:
    """Those of the units that were done."""
    return [
        (task.id, task.preclaimed.owner_id, task.preclaimed.lease_for)
        for unit, answer in zip(units, answers, strict=True)
        if answer.verdict is Verdict.DONE
        for task in unit.tasks
        if task.preclaimed is not None
    ]
