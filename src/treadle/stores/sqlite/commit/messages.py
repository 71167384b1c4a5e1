"""Messages to function runs: deliver, consume, and await them, inside the caller's transaction."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import apsw

from treadle.kernel.store.records import Await, TakeMessages
from treadle.model.records import Message
from treadle.stores.sqlite.connection.connect import to_json
from treadle.stores.sqlite.limits import Key
from treadle.stores.statements import load_statements

_SQL = load_statements(__package__, "messages.sql")


def put_messages(
    connection: apsw.Connection, sent: Sequence[tuple[int, Message]], now: int, keys: set[Key], lanes: dict[int, set[int]]
) -> None:
    """Deliver messages, each with the index of its unit, and wake the runs that await no more of them.

    Adds the lanes of woken tasks to `lanes`, by unit, and limit keys to `keys`.
    """
    rows = [(message.id, message.run_id, message.step_id, message.name, message.body) for _, message in sent]
    inserted = connection.execute(_SQL["insert_messages"], {"rows": to_json(rows), "now": now}).fetchall()
    if not inserted:
        return
    counts = Counter(str(run_id) for (run_id,) in inserted)
    bumped = connection.execute(_SQL["count_messages"], {"rows": to_json(list(counts.items()))}).fetchall()
    if not (due := [run_id for run_id, awaiting in bumped if awaiting == 0]):
        return
    for run_id, lane_id, hold, namespace, limit_key in connection.execute(_SQL["wake_runs"], {"ids": to_json(due)}):
        if limit_key is not None and hold:
            keys.add((namespace, limit_key))
        if not hold:
            for unit in {unit for unit, message in sent if message.run_id == run_id}:
                lanes.setdefault(unit, set()).add(lane_id)


def take_messages(connection: apsw.Connection, row: TakeMessages) -> None:
    """Delete messages that the run consumed."""
    connection.execute(_SQL["take_messages"], {"run_id": row.run_id, "ids": to_json(row.message_ids)})


def await_messages(connection: apsw.Connection, row: Await) -> None:
    """Set the number of messages that the run awaits."""
    connection.execute(_SQL["await_messages"], {"run_id": row.run_id, "count": row.count, "added": row.added})
