"""Read the rows that the guards of units name, inside the caller's transaction."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import apsw

from treadle.kernel.store.units import Unit
from treadle.stores.rules.guards import (
    GuardedTask,
    Snapshot,
    TaskKey,
    changed_records,
    name_of,
    new_records,
    new_runs,
    task_keys,
)
from treadle.stores.sqlite.connection.connect import to_json
from treadle.stores.statements import load_statements

_SQL = load_statements(__package__, "guards.sql")


def take_snapshot(connection: apsw.Connection, units: Sequence[Unit]) -> Snapshot:
    """Return the tasks, runs and records that the units are guarded by or create."""
    runs = [put.run for unit in units for put in new_runs(unit)]
    records = new_records(units)
    run_ids = {unit.run.run_id for unit in units if unit.run is not None} | {run.id for run in runs}
    record_ids = {change.record_id for change in changed_records(units)} | {record.id for record in records}
    run_keys = [(run.namespace, run.idempotency_key) for run in runs if run.idempotency_key is not None]
    names = [name_of(record) for record in records if record.name is not None]
    known = _find(connection, "find_runs", "ids", run_ids)
    return Snapshot(
        tasks=_find_tasks(connection, task_keys(units)),
        runs={row[0]: row[1] for row in known},
        ended={row[0] for row in known if row[2]},
        run_keys={(row[0], row[1]): row[2] for row in _find(connection, "find_runs_by_key", "rows", run_keys)},
        records={row[0]: row[1] for row in _find(connection, "find_records", "ids", record_ids)},
        names={(row[0], row[1], row[2]): row[3] for row in _find(connection, "find_holders", "rows", names)},
    )


def _find_tasks(connection: apsw.Connection, keys: set[TaskKey]) -> dict[TaskKey, GuardedTask]:
    found: dict[TaskKey, GuardedTask] = {}
    for finished, name in ((False, "find_tasks"), (True, "find_finished")):
        task_ids = [task_id for task_id, ended in keys if ended is finished]
        found |= {(row[0], finished): GuardedTask(*row) for row in _find(connection, name, "ids", task_ids)}
    return found


def _find(connection: apsw.Connection, name: str, parameter: str, wanted: Iterable[Any]) -> list[Any]:
    values = list(wanted)
    return connection.execute(_SQL[name], {parameter: to_json(values)}).fetchall() if values else []
