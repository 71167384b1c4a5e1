"""Idempotency keys, inside a commit's transaction."""

from __future__ import annotations

from collections.abc import Sequence

import apsw
import msgspec

from treadle.kernel.store.units import Answer, Unit
from treadle.stores.rules.keys import Deduped, leave_out, wanted_keys
from treadle.stores.sqlite.connection.connect import read_value, to_json
from treadle.stores.sqlite.retention import drop_uses
from treadle.stores.statements import load_statements

_SQL = load_statements(__package__, "keys.sql")
_decode = msgspec.json.Decoder().decode


def take_keys(connection: apsw.Connection, units: Sequence[Unit], now: int) -> Deduped:
    """Let the keys identify the new tasks, or leave out tasks with keys that identify others."""
    wanted = wanted_keys(units)
    rows = to_json([(*key, task.id, task.idempotency_for) for key, task in wanted])
    connection.execute(_SQL["take_keys"], {"rows": rows, "now": now})
    holders = _decode(read_value(connection, _SQL["list_holders"], {"rows": rows}))
    return leave_out(units, dict(zip((key for key, _ in wanted), holders, strict=True)))


def settle_keys(connection: apsw.Connection, deduped: Deduped, asked: Sequence[Unit], answers: Sequence[Answer]) -> list[Answer]:
    """Update the keys after the commit; return the answers to the original units."""
    answered = deduped.answer(asked, answers)
    for name, keys in (("give_back", deduped.lost), ("hand_over", deduped.moved)):
        if keys:
            connection.execute(_SQL[name], {"rows": to_json(keys)})
    if deduped.orphans:
        drop_uses(connection, deduped.orphans)
    return answered
