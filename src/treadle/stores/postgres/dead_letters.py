"""Dead letters: failed tasks by what they failed of, found by an index that holds no others."""

from __future__ import annotations

from typing import Any

from treadle.kernel.store.queries import DeadLetter, DeadLetterFilter, DeadLetterGroup
from treadle.kernel.store.units import Seen
from treadle.model.tasks import Task
from treadle.stores.postgres.connect import PACKAGE, Connection
from treadle.stores.postgres.reads import task_of
from treadle.stores.statements import load_statements

_SQL = load_statements(PACKAGE, "dead_letters.sql")


def _values(which: DeadLetterFilter) -> list[Any]:
    return [getattr(which, name) for name in which.__slots__]


async def list_dead_letters(connection: Connection, which: DeadLetterFilter, limit: int) -> list[Task]:
    """Failed tasks, the last to fail first."""
    return [task_of(row) for row in await connection.fetch(_SQL["list_dead_letters"], *_values(which), max(limit, 0))]


async def walk_dead_letters(connection: Connection, which: DeadLetterFilter, limit: int) -> list[DeadLetter]:
    """Failed tasks without their values, the first to fail first."""
    return [
        DeadLetter(Seen(task_id, version, claim_version), seq, root_id, run_id)
        for task_id, version, claim_version, seq, root_id, run_id in await connection.fetch(
            _SQL["walk_dead_letters"], *_values(which), max(limit, 0)
        )
    ]


async def group_dead_letters(connection: Connection, which: DeadLetterFilter, limit: int) -> list[DeadLetterGroup]:
    """Groups of failed tasks, the biggest first."""
    return [DeadLetterGroup(*row) for row in await connection.fetch(_SQL["group_dead_letters"], *_values(which), max(limit, 0))]


async def count_dead_letters(connection: Connection, which: DeadLetterFilter) -> tuple[int, int, int]:
    """How many, of runs, and the greatest seq."""
    if which.by_lane_alone:
        row = await connection.fetchrow(_SQL["count_dead_letters_in"], which.namespace, which.kind, which.task_list, which.name)
    else:
        row = await connection.fetchrow(_SQL["count_dead_letters"], *_values(which))
    assert row is not None
    return row[0], row[1], row[2]
