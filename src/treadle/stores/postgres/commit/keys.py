"""Idempotency keys, inside a commit's transaction; a second commit waits for the first one, then sees its task."""

from __future__ import annotations

from collections.abc import Sequence

from treadle.kernel.store.units import Answer, Unit
from treadle.model.errors import StoreBusy
from treadle.stores.postgres.connection.connect import Connection
from treadle.stores.postgres.retention import drop_uses
from treadle.stores.rules.keys import Deduped, leave_out, wanted_keys
from treadle.stores.statements import load_statements

_SQL = load_statements(__package__, "keys.sql")


async def take_keys(connection: Connection, units: Sequence[Unit]) -> Deduped:
    """Let the keys identify the new tasks, or leave out tasks with keys that identify others."""
    wanted = wanted_keys(units)
    namespaces, keys = [key[0] for key, _ in wanted], [key[1] for key, _ in wanted]
    tasks = [task for _, task in wanted]
    lifetimes = [task.idempotency_for for task in tasks]
    await connection.execute(_SQL["take_keys"], namespaces, keys, [task.id for task in tasks], lifetimes)
    holders = [row[0] for row in await connection.fetch(_SQL["list_holders"], namespaces, keys)]
    if len(holders) != len(wanted):
        raise StoreBusy("An idempotency key was pruned at this very moment; try again.")
    return leave_out(units, dict(zip((key for key, _ in wanted), holders, strict=True)))


async def settle_keys(connection: Connection, deduped: Deduped, asked: Sequence[Unit], answers: Sequence[Answer]) -> list[Answer]:
    """Update the keys after the commit; return the answers to the original units."""
    answered = deduped.answer(asked, answers)
    for name, keys in (("give_back", deduped.lost), ("hand_over", deduped.moved)):
        if keys:
            await connection.execute(_SQL[name], *map(list, zip(*keys, strict=True)))
    if deduped.orphans:
        await drop_uses(connection, deduped.orphans)
    return answered
