"""Idempotency keys, inside a commit's transaction; whoever comes second waits for the first to commit, then sees its task."""

from __future__ import annotations

from collections.abc import Sequence

from treadle.kernel.store.units import Answer, Unit
from treadle.model.errors import StoreBusy
from treadle.stores.dedupe import Deduped, leave_out, wanted_keys
from treadle.stores.postgres.connect import PACKAGE, Connection
from treadle.stores.postgres.prune import drop_uses
from treadle.stores.statements import load_statements

_SQL = load_statements(PACKAGE, "dedupe.sql")


async def take_keys(connection: Connection, units: Sequence[Unit]) -> Deduped:
    """Let the keys stand for the new tasks, or leave out the tasks that others stand for already."""
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
    """The answers to what was asked, with the keys as they have to be after it."""
    told = deduped.answer(asked, answers)
    for name, keys in (("give_back", deduped.lost), ("hand_over", deduped.moved)):
        if keys:
            await connection.execute(_SQL[name], *map(list, zip(*keys, strict=True)))
    if deduped.orphans:
        await drop_uses(connection, deduped.orphans)
    return told
