"""What is known of effects: written before they begin, and once more when they have come to something."""

from __future__ import annotations

from collections.abc import Sequence

import apsw
import msgspec

from treadle.model.records import EffectOutcome
from treadle.stores.statements import load_statements

_SQL = load_statements(__package__, "outcomes.sql")
_encode = msgspec.json.Encoder().encode


def put_outcomes(connection: apsw.Connection, outcomes: Sequence[EffectOutcome], now: int) -> None:
    """Note what is known now, inside a transaction of the caller's; what is resolved stays as it is."""
    rows = [(o.idempotency_key, o.tool_call_id, o.status, o.response_hash, o.response, o.root_id) for o in outcomes]
    connection.execute(_SQL["put_outcomes"], {"rows": _encode(rows).decode(), "now": now})
