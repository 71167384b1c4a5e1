"""Records in units: whether a unit may write them is judged first, then they are made and changed, then their items are.

All of it happens inside a transaction of the caller's.
"""

from __future__ import annotations

from collections.abc import Sequence

import apsw
import msgspec

from treadle.kernel.store.records import ChangeRecord, PutItems, PutRecord
from treadle.kernel.store.units import DEFERRED, DONE, Answer, Row, Unit, Verdict
from treadle.model.errors import IllegalMove
from treadle.stores.sqlite.connection import find_value, read_value
from treadle.stores.statements import load_statements

_SQL = load_statements(__package__, "records.sql")
_TAKE_SEQS = load_statements(__package__, "commit.sql")["take_seqs"]
_encode = msgspec.json.Encoder().encode


def refuse_records(connection: apsw.Connection, unit: Unit) -> Answer | None:
    """The answer to a unit whose records are there already, have moved on or have a name that is taken; None if it may happen."""
    new = [row.record for row in unit.rows if isinstance(row, PutRecord)]
    changes = [row for row in unit.rows if isinstance(row, ChangeRecord)]
    if any(find_value(connection, _SQL["find_version"], {"id": record.id}) is not None for record in new):
        return DONE
    versions: dict[str, int | None] = {record.id: 0 for record in new}
    for change in changes:
        record_id = change.record_id
        if record_id not in versions:
            versions[record_id] = find_value(connection, _SQL["find_version"], {"id": record_id})
        if versions[record_id] != change.version:
            return DEFERRED
        versions[record_id] = change.version + 1
    ended = {change.record_id for change in changes if change.ended}
    for record in new:
        if record.name is not None:
            values = {"namespace": record.namespace, "entity": record.entity, "name": record.name}
            holder = find_value(connection, _SQL["find_holder"], values)
            if holder is not None and holder not in ended:
                return Answer(Verdict.DONE, existing={record.name: holder})
    return None


def write_records(connection: apsw.Connection, rows: Sequence[Row], now: int) -> None:
    """Change the records that are there, which may free names; then make the new ones, and change these."""
    new = [row.record for row in rows if isinstance(row, PutRecord)]
    changes = [row for row in rows if isinstance(row, ChangeRecord)]
    made = {record.id for record in new}
    for change in changes:
        if change.record_id not in made:
            _change_record(connection, change, now)
    for record in new:
        connection.execute(_SQL["insert_record"], msgspec.structs.asdict(record) | {"now": now})
    for change in changes:
        if change.record_id in made:
            _change_record(connection, change, now)


def _change_record(connection: apsw.Connection, row: ChangeRecord, now: int) -> None:
    values = {name: getattr(row, name) for name in row.__slots__} | {"now": now}
    found = connection.execute(_SQL["change_record"], values).fetchall()
    if not found:
        raise IllegalMove("record", row.record_id, f"not {row.from_state}", row.move or "change")
    if row.move is not None:
        values["entity"], values["moves"], values["run_id"], values["root_id"], values["trace_id"] = found[0]
        values["seq"] = read_value(connection, _TAKE_SEQS, {"count": 1})
        connection.execute(_SQL["log_record"], values)


def put_items(connection: apsw.Connection, row: PutItems) -> None:
    """Keep values apart from the record's body, or remove them; of a key given twice, the last."""
    values = {"record_id": row.record_id, "rows": _encode(list(dict(row.items).items())).decode()}
    if any(value is None for _, value in row.items):
        connection.execute(_SQL["remove_items"], values)
    connection.execute(_SQL["put_items"], values)
