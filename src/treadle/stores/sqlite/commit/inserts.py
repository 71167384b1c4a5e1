"""New tasks: one statement for all tasks of a commit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import apsw
import msgspec

from treadle.model.names import Lane
from treadle.model.tasks import NewTask
from treadle.stores.rules.inserts import Preclaim, values_of
from treadle.stores.sqlite.connection.connect import read_value, to_json
from treadle.stores.sqlite.limits import charge
from treadle.stores.statements import load_statements

_SQL = load_statements(__package__, "inserts.sql")
_LAST = 2**63 - 1


class Inserted(NamedTuple):
    """The ids of inserted tasks; `holders` maps each task with a taken unique key to the live task that has the key."""

    ids: set[str]
    holders: dict[str, str]


def preclaim(connection: apsw.Connection, preclaims: Sequence[Preclaim], now: int) -> None:
    """Claim tasks that this transaction inserted for their owners."""
    if not preclaims:
        return
    found: list[Any] = connection.execute(_SQL["preclaim"], {"rows": to_json(preclaims), "now": now}).fetchall()
    charge(connection, [(namespace, key) for namespace, key in found if key is not None], now)


def insert_tasks(connection: apsw.Connection, tasks: Sequence[NewTask], lane_ids: Mapping[Lane, int], now: int) -> Inserted:
    """Insert the tasks with a new id and a free unique key, inside the caller's transaction."""
    values = [values_of(task, lane_ids[task.lane]) for task in tasks]
    rows = to_json(values)
    connection.execute(_SQL["insert_tasks"], {"rows": rows, "now": now})
    count = connection.changes()
    if count == len(tasks):
        return Inserted({task.id for task in tasks}, {})
    # SQLite numbers new rows after the greatest rowid, so these are the rows inserted just now.
    last_before = connection.last_insert_rowid() - count if count else _LAST
    explained = msgspec.json.decode(read_value(connection, _SQL["explain_inserts"], {"rows": rows, "last_before": last_before}))
    inserted = Inserted(set(), {})
    for task, (new, holder_id) in zip(tasks, explained, strict=True):
        if new:
            inserted.ids.add(task.id)
        elif holder_id is not None:
            inserted.holders[task.id] = holder_id
    return inserted
