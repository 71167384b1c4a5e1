"""New tasks: one statement for all of a commit, and what became of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import apsw
import msgspec

from treadle.model.names import Lane
from treadle.model.tasks import NewTask
from treadle.stores.preclaimed import Birth
from treadle.stores.sqlite.connection import read_value
from treadle.stores.statements import load_statements

_SQL = load_statements(__package__, "insert.sql")
_INSERT, _EXPLAIN = _SQL["insert_tasks"], _SQL["explain_inserts"]
_encode = msgspec.json.Encoder().encode

Inserted = tuple[bool, str | None]
"""Whether a task was inserted, and the id of the task that has its unique key if that is why not."""

_INSERTED: Inserted = (True, None)
_LAST = 2**63 - 1


def claim_born(connection: apsw.Connection, births: Sequence[Birth], now: int) -> None:
    """Let tasks that were inserted by this transaction be held by those who made them."""
    connection.execute(_SQL["claim_born"], {"rows": _encode(births).decode(), "now": now})


def insert_tasks(connection: apsw.Connection, tasks: Sequence[NewTask], lane_ids: Mapping[Lane, int], now: int) -> list[Inserted]:
    """Insert those whose id is nowhere and whose unique key is free, inside a transaction of the caller's.

    Those with a limit key wait to be admitted.
    """
    rows = _encode(
        [
            (
                task.id,
                lane_ids[task.lane],
                task.lane.namespace,
                task.priority,
                task.delay,
                task.unique_key,
                task.payload,
                task.deadline_for,
                task.timeout_for,
                task.progress_for,
                task.run_id,
                task.step_id,
                task.flow_id,
                task.scope,
                task.root_id,
                task.trace_id,
                task.limit_key,
                task.policy,
                task.hold | (task.limit_key is not None),
            )
            for task in tasks
        ]
    ).decode()
    connection.execute(_INSERT, {"rows": rows, "now": now})
    count = connection.changes()
    if count == len(tasks):
        return [_INSERTED] * count
    # New rows get the rowids after the greatest, one by one: these are the ones inserted just now.
    last_before = connection.last_insert_rowid() - count if count else _LAST
    explained = read_value(connection, _EXPLAIN, {"rows": rows, "last_before": last_before})
    return [(bool(new), holder_id) for new, holder_id in msgspec.json.decode(explained)]
