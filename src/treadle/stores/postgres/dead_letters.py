"""Dead letters: failed tasks, found by an index that holds no others."""

from __future__ import annotations

from typing import Any

from treadle.kernel.store.queries import DeadLetter, DeadLetterFilter, DeadLetterGroup
from treadle.kernel.store.units import Seen
from treadle.model.tasks import Task
from treadle.stores.postgres.connection.connect import Connection
from treadle.stores.postgres.database import Part, lists, reads
from treadle.stores.postgres.tasks import task_of
from treadle.stores.statements import load_statements

_SQL = load_statements(__package__, "dead_letters.sql")


_LAST_SEQ = 2**62


def _values(which: DeadLetterFilter) -> list[Any]:
    *values, after_seq, until_seq = (getattr(which, name) for name in which.__struct_fields__)
    return [*values, after_seq or 0, _LAST_SEQ if until_seq is None else until_seq]


class DeadLetters(Part):
    """The `DeadLetterStore` of PostgreSQL."""

    @lists
    async def list_newest(self, connection: Connection, which: DeadLetterFilter, limit: int) -> list[Task]:
        return [task_of(row) for row in await connection.fetch(_SQL["list_dead_letters"], *_values(which), max(limit, 0))]

    @lists
    async def walk(self, connection: Connection, which: DeadLetterFilter, limit: int) -> list[DeadLetter]:
        rows = await connection.fetch(_SQL["walk_dead_letters"], *_values(which), max(limit, 0))
        return [
            DeadLetter(Seen(task_id, version, claim_version), seq, root_id, run_id)
            for task_id, version, claim_version, seq, root_id, run_id in rows
        ]

    @reads
    async def group(self, connection: Connection, which: DeadLetterFilter, limit: int) -> list[DeadLetterGroup]:
        return [DeadLetterGroup(*row) for row in await connection.fetch(_SQL["group_dead_letters"], *_values(which), max(limit, 0))]

    @reads
    async def count(self, connection: Connection, which: DeadLetterFilter) -> tuple[int, int, int]:
        name, values = (
            ("count_dead_letters_in", _values(which)[:4]) if which.by_lane_alone else ("count_dead_letters", _values(which))
        )
        row = await connection.fetchrow(_SQL[name], *values)
        assert row is not None
        return row[0], row[1], row[2]
