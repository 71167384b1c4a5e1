"""Message of function runs: what is told to them, what they take in, and for how much more they wait.

All of it happens inside a transaction of the caller's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import apsw
import msgspec

from treadle.kernel.store.records import Await, TakeMessages
from treadle.model.records import Message
from treadle.stores.sqlite.limits import Key
from treadle.stores.statements import load_statements

_SQL = load_statements(__package__, "mail.sql")
_encode = msgspec.json.Encoder().encode


def put_mail(
    connection: apsw.Connection, told: Sequence[tuple[int, Message]], now: int, keys: set[Key], lanes: dict[int, set[int]]
) -> None:
    """Tell runs, each with the unit that tells it, and make those ready that await nothing more.

    Their lanes are added to those of the units in `lanes`, limit keys to `keys`.
    """
    rows = [(mail.id, mail.run_id, mail.step_id, mail.name, mail.body) for _, mail in told]
    inserted = connection.execute(_SQL["insert_mail"], {"rows": _encode(rows).decode(), "now": now}).fetchall()
    if not inserted:
        return
    counts = Counter(str(run_id) for (run_id,) in inserted)
    bumped = connection.execute(_SQL["tell_runs"], {"rows": _encode(list(counts.items())).decode()}).fetchall()
    if not (due := [run_id for run_id, awaiting in bumped if awaiting == 0]):
        return
    for run_id, lane_id, hold, namespace, limit_key in connection.execute(_SQL["wake_told"], {"ids": _encode(due).decode()}):
        if limit_key is not None and hold:
            keys.add((namespace, limit_key))
        if not hold:
            for unit in {unit for unit, mail in told if mail.run_id == run_id}:
                lanes.setdefault(unit, set()).add(lane_id)


def take_mail(connection: apsw.Connection, row: TakeMessages) -> None:
    """These are gone."""
    connection.execute(_SQL["take_mail"], {"run_id": row.run_id, "ids": _encode(row.message_ids).decode()})


def await_mail(connection: apsw.Connection, row: Await) -> None:
    """From now on so much more is awaited."""
    connection.execute(_SQL["await_mail"], {"run_id": row.run_id, "count": row.count, "added": row.added})
