"""Lock and read the rows that the guards of units name: runs, then tasks, then records, each in the order of their ids (D8)."""

from __future__ import annotations

from collections.abc import Sequence, Set

from treadle.kernel.store.records import Await, ChangeRecord, PutMessage, PutRecord
from treadle.kernel.store.units import Unit
from treadle.model.records import Record
from treadle.stores.postgres.commit.messages import receiving_runs
from treadle.stores.postgres.connection.connect import Connection, plain
from treadle.stores.rules.guards import (
    GuardedTask,
    Name,
    Settled,
    Snapshot,
    TaskKey,
    changed_records,
    kinds_of,
    name_of,
    new_records,
    task_keys,
)
from treadle.stores.statements import load_statements

_SQL = load_statements(__package__, "guards.sql")


async def take_snapshot(connection: Connection, units: Sequence[Unit]) -> Snapshot:
    """Lock and return the tasks, runs and records that guard the units, and the runs that receive messages."""
    kinds = kinds_of(units)
    receiving = receiving_runs(units) if PutMessage in kinds else set()
    wanted = {unit.run.run_id for unit in units if unit.run is not None} | receiving
    if Await in kinds:
        wanted |= {row.run_id for unit in units for row in unit.rows if isinstance(row, Await)}
    known = await connection.fetch(_SQL["lock_runs"], plain(sorted(wanted))) if wanted else []
    runs, ended = {row[0]: row[1] for row in known}, {row[0] for row in known if row[2]}
    tasks = await _lock_tasks(connection, task_keys(units), receiving)
    if PutRecord not in kinds and ChangeRecord not in kinds:
        return Snapshot(tasks, runs, ended)
    new = new_records(units)
    record_ids = {change.record_id for change in changed_records(units)} | {record.id for record in new}
    records = {row[0]: row[1] for row in await connection.fetch(_SQL["lock_records"], sorted(record_ids))}
    return Snapshot(tasks, runs, ended, records=records, names=await find_holders(connection, new))


async def _lock_tasks(connection: Connection, keys: set[TaskKey], receiving: Set[str]) -> dict[TaskKey, GuardedTask]:
    """Lock the guarded tasks, and the own tasks of runs that receive messages, which may wake them."""
    found: dict[TaskKey, GuardedTask] = {}
    for finished, statement in ((False, "lock_tasks"), (True, "lock_finished")):
        task_ids = sorted(task_id for task_id, ended in keys if ended is finished)
        if receiving and not finished:
            rows = await connection.fetch(_SQL["lock_tasks_and_receivers"], plain(task_ids), plain(sorted(receiving)))
        else:
            rows = await connection.fetch(_SQL[statement], plain(task_ids)) if task_ids else []
        found |= {(row[0], finished): GuardedTask(*row) for row in rows}
    return found


async def find_holders(connection: Connection, records: Sequence[Record]) -> dict[Name, str]:
    """Return the live records that have the names of these, by name."""
    names = [name_of(record) for record in records if record.name is not None]
    if not names:
        return {}
    rows = await connection.fetch(_SQL["find_holders"], *([name[part] for name in names] for part in range(3)))
    return {(row[0], row[1], row[2]): row[3] for row in rows}


async def list_settled(connection: Connection, asked: Sequence[Settled]) -> set[int]:
    """Return the indexes of the settlements that were committed before."""
    if not asked:
        return set()
    rows = await connection.fetch(
        _SQL["list_settled"],
        [each.claim.task_id for each in asked],
        [each.claim.version for each in asked],
        [each.claim.owner_id for each in asked],
        [each.actor for each in asked],
        [each.move for each in asked],
    )
    return {row[0] - 1 for row in rows}
