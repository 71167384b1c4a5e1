"""Idempotency keys, inside a commit's transaction."""

from __future__ import annotations

from collections.abc import Sequence

import apsw
import msgspec

from treadle.kernel.store.units import Answer, Unit
from treadle.stores.dedupe import Deduped, leave_out, wanted_keys
from treadle.stores.sqlite.connection import read_value
from treadle.stores.sqlite.prune import drop_uses
from treadle.stores.statements import load_statements

_SQL = load_statements(__package__, "dedupe.sql")
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


def take_keys(connection: apsw.Connection, units: Sequence[Unit], now: int) -> Deduped:
    """Let the keys stand for the new tasks, or leave out the tasks that others stand for already."""
    wanted = wanted_keys(units)
    rows = _encode([(*key, task.id, task.idempotency_for) for key, task in wanted]).decode()
    connection.execute(_SQL["take_keys"], {"rows": rows, "now": now})
    holders = _decode(read_value(connection, _SQL["list_holders"], {"rows": rows}))
    return leave_out(units, dict(zip((key for key, _ in wanted), holders, strict=True)))


def settle_keys(connection: apsw.Connection, deduped: Deduped, asked: Sequence[Unit], answers: Sequence[Answer]) -> list[Answer]:
    """The answers to what was asked, with the keys as they have to be after it."""
    told = deduped.answer(asked, answers)
    for name, keys in (("give_back", deduped.lost), ("hand_over", deduped.moved)):
        if keys:
            connection.execute(_SQL[name], {"rows": _encode(keys).decode()})
    if deduped.orphans:
        drop_uses(connection, deduped.orphans)
    return told
