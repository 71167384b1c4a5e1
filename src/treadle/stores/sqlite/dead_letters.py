"""Dead letters: failed tasks by what they failed of, found by an index that holds no others."""

from __future__ import annotations

from typing import Any

import apsw
import msgspec

from treadle.kernel.store.queries import DeadLetter, DeadLetterFilter, DeadLetterGroup
from treadle.kernel.store.units import Seen
from treadle.model.tasks import Task
from treadle.stores.sqlite.connection import read_row, read_value
from treadle.stores.statements import load_statements

_SQL = load_statements(__package__, "dead_letters.sql")
_decode_tasks = msgspec.json.Decoder(list[Task]).decode


def _values(which: DeadLetterFilter) -> dict[str, Any]:
    return {name: getattr(which, name) for name in which.__slots__}


def list_dead_letters(connection: apsw.Connection, which: DeadLetterFilter, limit: int) -> list[Task]:
    """Failed tasks, the last to fail first."""
    return _decode_tasks(read_value(connection, _SQL["list_dead_letters"], _values(which) | {"limit": max(limit, 0)}))


def walk_dead_letters(connection: apsw.Connection, which: DeadLetterFilter, limit: int) -> list[DeadLetter]:
    """Failed tasks without their values, the first to fail first."""
    return [
        DeadLetter(Seen(task_id, version, claim_version), seq, root_id, run_id)
        for task_id, version, claim_version, seq, root_id, run_id in connection.execute(
            _SQL["walk_dead_letters"], _values(which) | {"limit": max(limit, 0)}
        )
    ]


def group_dead_letters(connection: apsw.Connection, which: DeadLetterFilter, limit: int) -> list[DeadLetterGroup]:
    """Groups of failed tasks, the biggest first."""
    return [
        DeadLetterGroup(*row) for row in connection.execute(_SQL["group_dead_letters"], _values(which) | {"limit": max(limit, 0)})
    ]


def count_dead_letters(connection: apsw.Connection, which: DeadLetterFilter) -> tuple[int, int, int]:
    """How many, of runs, and the greatest seq."""
    if which.by_lane_alone:
        lane = {"namespace": which.namespace, "kind": which.kind, "task_list": which.task_list, "name": which.name}
        count, of_runs, last_seq = read_row(connection, _SQL["count_dead_letters_in"], lane)
    else:
        count, of_runs, last_seq = read_row(connection, _SQL["count_dead_letters"], _values(which))
    return count, of_runs, last_seq
