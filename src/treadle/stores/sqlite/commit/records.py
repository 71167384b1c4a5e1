"""Write records and their items, inside the caller's transaction."""

from __future__ import annotations

import apsw
import msgspec

from treadle.kernel.store.records import ChangeRecord, PutItems
from treadle.kernel.store.units import Unit
from treadle.model.errors import IllegalMove
from treadle.stores.rules.guards import changed_records, new_records
from treadle.stores.sqlite.commit.settlements import take_seqs
from treadle.stores.sqlite.connection.connect import to_json
from treadle.stores.statements import load_statements

_SQL = load_statements(__package__, "records.sql")


def write_records(connection: apsw.Connection, unit: Unit, now: int) -> None:
    """Change existing records first, which may free names; then insert new ones, and change these."""
    new, changes = new_records([unit]), changed_records([unit])
    created = {record.id for record in new}
    for change in changes:
        if change.record_id not in created:
            _change_record(connection, change, now)
    for record in new:
        connection.execute(_SQL["insert_record"], msgspec.structs.asdict(record) | {"now": now})
    for change in changes:
        if change.record_id in created:
            _change_record(connection, change, now)


def _change_record(connection: apsw.Connection, row: ChangeRecord, now: int) -> None:
    values = {name: getattr(row, name) for name in row.__struct_fields__} | {"now": now}
    found = connection.execute(_SQL["change_record"], values).fetchall()
    if not found:
        raise IllegalMove("record", row.record_id, f"not {row.from_state}", row.move or "change")
    if row.move is not None:
        values["entity"], values["moves"], values["run_id"], values["root_id"], values["trace_id"] = found[0]
        values["seq"] = take_seqs(connection, 1)
        connection.execute(_SQL["log_record"], values)


def put_items(connection: apsw.Connection, row: PutItems) -> None:
    """Store or remove values of a record; of a key that is given twice, the last one."""
    values = {"record_id": row.record_id, "rows": to_json(list(dict(row.items).items()))}
    if any(value is None for _, value in row.items):
        connection.execute(_SQL["remove_items"], values)
    connection.execute(_SQL["put_items"], values)
