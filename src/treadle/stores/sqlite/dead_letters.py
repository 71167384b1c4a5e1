"""Dead letters: failed tasks, found by an index that holds no others."""

from __future__ import annotations

from typing import Any

import apsw

from treadle.kernel.store.queries import DeadLetter, DeadLetterFilter, DeadLetterGroup
from treadle.kernel.store.units import Seen
from treadle.model.tasks import Task
from treadle.stores.sqlite.connection.connect import read_row, read_value
from treadle.stores.sqlite.database import Part, reads
from treadle.stores.sqlite.tasks import decode_tasks
from treadle.stores.statements import load_statements

_SQL = load_statements(__package__, "dead_letters.sql")


def _values(which: DeadLetterFilter, limit: int = 0) -> dict[str, Any]:
    return {name: getattr(which, name) for name in which.__struct_fields__} | {"limit": max(limit, 0)}


class DeadLetters(Part):
    """The `DeadLetterStore` of SQLite."""

    @reads
    def list_newest(self, connection: apsw.Connection, which: DeadLetterFilter, limit: int) -> list[Task]:
        return decode_tasks(read_value(connection, _SQL["list_dead_letters"], _values(which, limit)))

    @reads
    def walk(self, connection: apsw.Connection, which: DeadLetterFilter, limit: int) -> list[DeadLetter]:
        return [
            DeadLetter(Seen(task_id, version, claim_version), seq, root_id, run_id)
            for task_id, version, claim_version, seq, root_id, run_id in connection.execute(
                _SQL["walk_dead_letters"], _values(which, limit)
            )
        ]

    @reads
    def group(self, connection: apsw.Connection, which: DeadLetterFilter, limit: int) -> list[DeadLetterGroup]:
        return [DeadLetterGroup(*row) for row in connection.execute(_SQL["group_dead_letters"], _values(which, limit))]

    @reads
    def count(self, connection: apsw.Connection, which: DeadLetterFilter) -> tuple[int, int, int]:
        name = "count_dead_letters_in" if which.by_lane_alone else "count_dead_letters"
        count, of_runs, last_seq = read_row(connection, _SQL[name], _values(which))
        return count, of_runs, last_seq
