"""Write records and their items, one statement for many."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from treadle.kernel.store.records import ChangeRecord, PutItems
from treadle.kernel.store.units import DONE, Answer, Unit, Verdict
from treadle.model.errors import IllegalMove, StoreBusy
from treadle.model.records import Record
from treadle.stores.postgres.commit.guards import find_holders
from treadle.stores.postgres.connection.connect import Connection, sparse
from treadle.stores.rules.guards import changed_records, name_of, new_records
from treadle.stores.statements import load_statements

_SQL = load_statements(__package__, "records.sql")


class _Taken(Exception):
    """The records of these units exist, or their names are taken: the changes so far must be rolled back."""

    def __init__(self, answers: dict[int, Answer]) -> None:
        self.answers = answers


async def write_records(connection: Connection, units: Mapping[int, Unit]) -> dict[int, Answer]:
    """Change and insert the records of units, by position; or do nothing, and return answers to units that are refused after all.

    Changes existing records first, which may free names.
    """
    new = [(position, record) for position, unit in units.items() for record in new_records([unit])]
    changes = changed_records(units.values())
    if not new:
        await _change(connection, changes)
        return {}
    created = {record.id for _, record in new}
    try:
        async with connection.transaction():
            await _change(connection, [change for change in changes if change.record_id not in created])
            await _insert(connection, new)
            await _change(connection, [change for change in changes if change.record_id in created])
    except _Taken as taken:
        return taken.answers
    return {}


async def _insert(connection: Connection, new: Sequence[tuple[int, Record]]) -> None:
    """Insert the records, because only that shows whether they are new."""
    records = sorted((record for _, record in new), key=lambda record: (record.name or "", record.id))
    inserted = {row[0] for row in await connection.fetch(_SQL["insert_records"], msgspec.json.encode(records).decode())}
    refused = [(position, record) for position, record in new if record.id not in inserted]
    if not refused:
        return
    ids = [record.id for _, record in refused]
    known = {row[0] for row in await connection.fetch(_SQL["list_existing"], ids)}
    holders = await find_holders(connection, [record for _, record in refused])
    answers: dict[int, Answer] = {}
    for position, record in refused:
        holder = record.id if record.id in known else holders.get(name_of(record))
        if holder is None:
            raise StoreBusy(f"The record with the name {record.name} ended at this very moment; try again.")
        answers[position] = DONE if holder == record.id else Answer(Verdict.DONE, existing={record.name or "": holder})
    raise _Taken(answers)


async def _change(connection: Connection, changes: Sequence[ChangeRecord]) -> None:
    """Change records in batches; the second change of a record goes into the batch after its first."""
    pending = list(changes)
    while pending:
        now: dict[str, ChangeRecord] = {}
        later = []
        for change in pending:
            if change.record_id in now:
                later.append(change)
            else:
                now[change.record_id] = change
        batch = list(now.values())
        count = await connection.fetchval(
            _SQL["change_records"],
            [change.record_id for change in batch],
            [change.version for change in batch],
            [change.body for change in batch],
            sparse([change.move for change in batch]),
            sparse([change.from_state for change in batch]),
            sparse([change.to_state for change in batch]),
            [change.ended for change in batch],
            sparse([change.actor for change in batch]),
            sparse([change.data for change in batch]),
            sparse([change.task_id for change in batch]),
        )
        if count != len(batch):
            raise IllegalMove("record", batch[0].record_id, f"not {batch[0].from_state}", batch[0].move or "change")
        pending = later


async def put_items(connection: Connection, puts: Sequence[PutItems]) -> None:
    """Store or remove values of records; of a key that several units put, the last one."""
    items = {(row.record_id, key): value for row in puts for key, value in row.items}
    removed = sorted(place for place, value in items.items() if value is None)
    if removed:
        await connection.execute(_SQL["remove_items"], [place[0] for place in removed], [place[1] for place in removed])
    kept = sorted((place, value) for place, value in items.items() if value is not None)
    if kept:
        columns = [place[0] for place, _ in kept], [place[1] for place, _ in kept], [value for _, value in kept]
        await connection.execute(_SQL["put_items"], *columns)
