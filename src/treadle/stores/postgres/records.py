"""Records in units: locked in the order of their ids, judged one unit after the other, then changed and made set by set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from treadle.kernel.store.records import ChangeRecord, PutItems, PutRecord
from treadle.kernel.store.units import DEFERRED, DONE, Answer, Unit, Verdict
from treadle.model.errors import IllegalMove, InvalidInput, StoreBusy
from treadle.model.records import Record
from treadle.stores.postgres.connect import PACKAGE, Connection, sparse
from treadle.stores.statements import load_statements

_SQL = load_statements(PACKAGE, "records.sql")

Name = tuple[str, str, str | None]
"""Namespace, entity, name."""


def _name(record: Record) -> Name:
    return record.namespace, record.entity, record.name


@dataclass(slots=True)
class RecordsSeen:
    """The versions of the records that units write, and who has the names of new ones, after the units judged so far."""

    versions: dict[str, int] = field(default_factory=dict)
    names: dict[Name, str] = field(default_factory=dict)

    def refusal(self, unit: Unit) -> Answer | None:
        """The answer to a unit whose records are there already or have moved on; None if it may happen, as far as is known."""
        new = [row.record for row in unit.rows if isinstance(row, PutRecord)]
        if any(record.id in self.versions for record in new):
            return DONE
        names = [_name(record) for record in new if record.name is not None]
        if len(set(names)) < len(names):
            raise InvalidInput(f"A unit cannot make two records of one name; each needs its own, but these are given: {names}.")
        changes = [row for row in unit.rows if isinstance(row, ChangeRecord)]
        versions: dict[str, int] = {record.id: 0 for record in new}
        for change in changes:
            if versions.get(change.record_id, self.versions.get(change.record_id)) != change.version:
                return DEFERRED
            versions[change.record_id] = change.version + 1
        ended = {change.record_id for change in changes if change.ended}
        for record in new:
            holder = self.names.get(_name(record))
            if record.name is not None and holder is not None and holder not in ended:
                return Answer(Verdict.DONE, existing={record.name: holder})
        return None

    def fresh(self) -> RecordsSeen:
        """As before the first unit was judged."""
        return RecordsSeen(dict(self.versions), dict(self.names))

    def advance(self, unit: Unit) -> None:
        """The unit happens."""
        for row in unit.rows:
            if isinstance(row, PutRecord):
                self.versions[row.record.id] = 0
                if row.record.name is not None:
                    self.names[_name(row.record)] = row.record.id
        for row in unit.rows:
            if isinstance(row, ChangeRecord):
                self.versions[row.record_id] = row.version + 1
                if row.ended:
                    self.names = {name: holder for name, holder in self.names.items() if holder != row.record_id}


class _Taken(Exception):
    """What was written so far has to be taken back: new records of these units are there already, or their names are taken."""

    def __init__(self, answers: dict[int, Answer]) -> None:
        self.answers = answers


async def see_records(connection: Connection, units: Sequence[Unit]) -> RecordsSeen:
    """Lock the records that units write, and look who has the names of new ones."""
    new = [row.record for unit in units for row in unit.rows if isinstance(row, PutRecord)]
    wanted = {row.record_id for unit in units for row in unit.rows if isinstance(row, ChangeRecord)}
    wanted |= {record.id for record in new}
    if not wanted:
        return RecordsSeen()
    versions = {row[0]: row[1] for row in await connection.fetch(_SQL["lock_records"], sorted(wanted))}
    return RecordsSeen(versions, await _find_holders(connection, [record for record in new if record.name is not None]))


async def _find_holders(connection: Connection, records: Sequence[Record]) -> dict[Name, str]:
    """The live records that have the names of these."""
    if not records:
        return {}
    names = [_name(record) for record in records]
    rows = await connection.fetch(_SQL["find_holders"], *([name[part] for name in names] for part in range(3)))
    return {(row[0], row[1], row[2]): row[3] for row in rows}


async def write_records(connection: Connection, units: Mapping[int, Unit]) -> dict[int, Answer]:
    """Change and make the records of units that may happen, by index; or do nothing, and answer those that may not after all.

    Records that are there are changed first, which may free names.
    """
    new = [(index, row.record) for index, unit in units.items() for row in unit.rows if isinstance(row, PutRecord)]
    made = {record.id for _, record in new}
    changes = [row for unit in units.values() for row in unit.rows if isinstance(row, ChangeRecord)]
    if not new:
        await _change(connection, changes)
        return {}
    try:
        async with connection.transaction():
            await _change(connection, [change for change in changes if change.record_id not in made])
            await _insert(connection, new)
            await _change(connection, [change for change in changes if change.record_id in made])
    except _Taken as taken:
        return taken.answers
    return {}


async def _insert(connection: Connection, new: Sequence[tuple[int, Record]]) -> None:
    """Insert the records, as only that tells whether they are new."""
    records = sorted((record for _, record in new), key=lambda record: (record.name or "", record.id))
    inserted = {row[0] for row in await connection.fetch(_SQL["insert_records"], msgspec.json.encode(records).decode())}
    refused = [(index, record) for index, record in new if record.id not in inserted]
    if not refused:
        return
    ids = [record.id for _, record in refused]
    there = {row[0] for row in await connection.fetch(_SQL["list_there"], ids)}
    holders = await _find_holders(connection, [record for _, record in refused])
    answers: dict[int, Answer] = {}
    for index, record in refused:
        holder = record.id if record.id in there else holders.get(_name(record))
        if holder is None:
            raise StoreBusy(f"The record with the name {record.name} ended at this very moment; try again.")
        answers[index] = DONE if holder == record.id else Answer(Verdict.DONE, existing={record.name or "": holder})
    raise _Taken(answers)


async def _change(connection: Connection, changes: Sequence[ChangeRecord]) -> None:
    """Changes of different records go together; the second change of a record goes after its first."""
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
    """Keep values apart from records' bodies, or remove them; of a key that several units put, the last."""
    items = {(row.record_id, key): value for row in puts for key, value in row.items}
    removed = sorted(place for place, value in items.items() if value is None)
    if removed:
        await connection.execute(_SQL["remove_items"], [place[0] for place in removed], [place[1] for place in removed])
    kept = sorted((place, value) for place, value in items.items() if value is not None)
    if kept:
        columns = [place[0] for place, _ in kept], [place[1] for place, _ in kept], [value for _, value in kept]
        await connection.execute(_SQL["put_items"], *columns)
