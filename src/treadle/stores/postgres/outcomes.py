"""What is known of effects: written before they begin, and once more when they have come to something."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from treadle.model.records import EffectOutcome
from treadle.stores.postgres.connect import PACKAGE, Connection, sparse
from treadle.stores.statements import load_statements

_SQL = load_statements(PACKAGE, "outcomes.sql")


async def put_outcomes(connection: Connection, given: Iterable[EffectOutcome]) -> None:
    """Note what is known now; what is resolved stays as it is, also among those given."""
    last: dict[str, EffectOutcome] = {}
    for outcome in given:
        before = last.get(outcome.idempotency_key)
        if before is None:
            last[outcome.idempotency_key] = outcome
        elif before.status == "unknown":
            last[outcome.idempotency_key] = msgspec.structs.replace(outcome, root_id=before.root_id)
    outcomes = [last[key] for key in sorted(last)]
    if outcomes:
        await connection.execute(
            _SQL["put_outcomes"],
            [outcome.idempotency_key for outcome in outcomes],
            [outcome.tool_call_id for outcome in outcomes],
            [outcome.status for outcome in outcomes],
            sparse([outcome.response_hash for outcome in outcomes]),
            sparse([outcome.response for outcome in outcomes]),
            [outcome.root_id for outcome in outcomes],
        )
