"""Moves for readers: the log and the ends of finished tasks, merged by seq, which is not the order of commits (D9)."""

from __future__ import annotations

from treadle.kernel.store.queries import Event, Tally
from treadle.stores.postgres.connect import PACKAGE, Connection
from treadle.stores.postgres.reads import moves_of
from treadle.stores.statements import load_statements

_SQL = load_statements(PACKAGE, "events.sql")


async def list_events(connection: Connection, after_seq: int, until_seq: int, limit: int) -> list[Event]:
    """The moves after a seq and up to another, in the order of seq."""
    rows = await connection.fetch(_SQL["list_events"], after_seq, until_seq, max(limit, 0))
    return [Event(row["row_namespace"], move) for row, move in zip(rows, moves_of(rows), strict=True)]


async def find_last_seq(connection: Connection) -> int:
    """The last number given."""
    return int(await connection.fetchval(_SQL["find_last_seq"]))


async def tally(connection: Connection, after_seq: int, until_seq: int) -> list[Tally]:
    """Moves of tasks by minute."""
    return [Tally(*row) for row in await connection.fetch(_SQL["tally"], after_seq, until_seq)]
