"""The short way of checkpoints: claims are looked at and steps are stored by one statement for all units of a call."""

from __future__ import annotations

from collections.abc import Sequence

from treadle.kernel.store.units import CLAIM_LOST, Answer, PutSteps, Unit
from treadle.model.tasks import Claim
from treadle.stores.checkpoints import kept_answer
from treadle.stores.postgres.connect import PACKAGE, Connection, plain, words
from treadle.stores.statements import load_statements

_SQL = load_statements(PACKAGE, "checkpoints.sql")


async def put_checkpoints(connection: Connection, units: Sequence[Unit]) -> list[Answer]:
    """Do units that are nothing but checkpoints."""
    given = [
        (position, unit.guard, step)
        for position, unit in enumerate(units)
        if isinstance(unit.guard, Claim)
        for row in unit.rows
        if isinstance(row, PutSteps)
        for step in row.steps
    ]
    steps = [step for _, _, step in given]
    rows = await connection.fetch(
        _SQL["put_checkpoints"],
        plain([position for position, _, _ in given]),
        plain([claim.task_id for _, claim, _ in given]),
        plain([claim.version for _, claim, _ in given]),
        words([claim.owner_id for _, claim, _ in given]),
        plain([step.id for step in steps]),
        plain([step.run_id for step in steps]),
        words([step.parent_id for step in steps]),
        plain([step.ordinal for step in steps]),
        words([step.kind for step in steps]),
        words([step.name for step in steps]),
        words([step.facet for step in steps]),
        words([step.state for step in steps]),
        [step.body for step in steps],
    )
    answers = [CLAIM_LOST] * len(units)
    for position, hold in rows:
        answers[position] = kept_answer(hold)
    return answers
