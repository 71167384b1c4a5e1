"""Messages to function runs: deliver, consume, and await them.

The commit has locked the runs, and the tasks that messages may wake, each in the order of their ids (D8).
"""

from __future__ import annotations

from collections.abc import Sequence

from treadle.kernel.store.records import Await, PutMessage, TakeMessages
from treadle.kernel.store.units import Unit
from treadle.model.records import Message
from treadle.stores.postgres.connection.connect import Connection, plain, words
from treadle.stores.postgres.limits import Key
from treadle.stores.statements import load_statements

_SQL = load_statements(__package__, "messages.sql")


def receiving_runs(units: Sequence[Unit]) -> set[str]:
    """Return the runs to which units send messages."""
    return {row.message.run_id for unit in units for row in unit.rows if isinstance(row, PutMessage)}


async def put_messages(
    connection: Connection, sent: Sequence[tuple[int, Message]], keys: set[Key], lanes: dict[int, set[int]]
) -> None:
    """Deliver messages, each with the position of its unit, and wake the runs that await no more of them.

    Adds the lanes of woken tasks to `lanes`, by unit, and limit keys to `keys`.
    """
    messages = [message for _, message in sent]
    woken = await connection.fetch(
        _SQL["put_messages"],
        plain([message.id for message in messages]),
        plain([message.run_id for message in messages]),
        words([message.step_id for message in messages]),
        words([message.name for message in messages]),
        [message.body for message in messages],
    )
    for run_id, lane_id, hold, namespace, limit_key in woken:
        if limit_key is not None and hold:
            keys.add((namespace, limit_key))
        if not hold:
            for unit in {unit for unit, message in sent if message.run_id == run_id}:
                lanes.setdefault(unit, set()).add(lane_id)


async def take_messages(connection: Connection, taken: Sequence[TakeMessages]) -> None:
    """Delete messages that runs consumed."""
    places = sorted({(row.run_id, message_id) for row in taken for message_id in row.message_ids})
    if places:
        await connection.execute(
            _SQL["take_messages"], plain([place[0] for place in places]), plain([place[1] for place in places])
        )


async def await_messages(connection: Connection, awaits: Sequence[Await]) -> None:
    """Set the number of messages that runs await; of several units of a run, the last one counts."""
    counts = {row.run_id: row.count for row in awaits}
    if counts:
        added = [sum(row.added for row in awaits if row.run_id == run_id) for run_id in counts]
        await connection.execute(_SQL["await_messages"], list(counts), list(counts.values()), added)
