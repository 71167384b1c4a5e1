"""Message of function runs: what is told to them, what they take in, and for how much more they wait.

The runs, and the tasks that mail may wake, have been locked before, each in the order of their ids (D8).
"""

from __future__ import annotations

from collections.abc import Sequence

from treadle.kernel.store.records import Await, PutMessage, TakeMessages
from treadle.kernel.store.units import Unit
from treadle.model.records import Message
from treadle.stores.postgres.connect import PACKAGE, Connection, sparse
from treadle.stores.postgres.limits import Key
from treadle.stores.statements import load_statements

_SQL = load_statements(PACKAGE, "mail.sql")


def told_runs(units: Sequence[Unit]) -> set[str]:
    """The runs that units tell something."""
    return {row.message.run_id for unit in units for row in unit.rows if isinstance(row, PutMessage)}


async def put_mail(connection: Connection, told: Sequence[tuple[int, Message]], keys: set[Key], lanes: dict[int, set[int]]) -> None:
    """Tell runs, each with the unit that tells it, and make those ready that await nothing more.

    Their lanes are added to those of the units in `lanes`, limit keys to `keys`.
    """
    mail = [each for _, each in told]
    woken = await connection.fetch(
        _SQL["put_mail"],
        [each.id for each in mail],
        [each.run_id for each in mail],
        sparse([each.step_id for each in mail]),
        sparse([each.name for each in mail]),
        [each.body for each in mail],
    )
    for run_id, lane_id, hold, namespace, limit_key in woken:
        if limit_key is not None and hold:
            keys.add((namespace, limit_key))
        if not hold:
            for unit in {unit for unit, each in told if each.run_id == run_id}:
                lanes.setdefault(unit, set()).add(lane_id)


async def take_mail(connection: Connection, taken: Sequence[TakeMessages]) -> None:
    """These are gone."""
    places = sorted({(row.run_id, mail_id) for row in taken for mail_id in row.message_ids})
    if places:
        await connection.execute(_SQL["take_mail"], [place[0] for place in places], [place[1] for place in places])


async def await_mail(connection: Connection, awaits: Sequence[Await]) -> None:
    """From now on so much more is awaited; of several units of a run, as the last says."""
    counts = {row.run_id: row.count for row in awaits}
    if counts:
        added = [sum(row.added for row in awaits if row.run_id == run_id) for run_id in counts]
        await connection.execute(_SQL["await_mail"], list(counts), list(counts.values()), added)
