"""The log: moves of entities, merged by seq with the ends of finished tasks, and the lines of handlers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby

import asyncpg

from treadle.kernel.store.queries import Event, History
from treadle.model.tasks import LogLine, Move
from treadle.stores.postgres.connection.connect import Connection, texts
from treadle.stores.postgres.database import Part, lists, works
from treadle.stores.shared import LogReads
from treadle.stores.statements import load_statements

_SQL = load_statements(__package__, "log.sql")

_FIRST_ID = "00000000-0000-0000-0000-000000000000"


class Log(Part, LogReads):
    """The `LogStore` of PostgreSQL. The order of seqs is not the order of commits (D9)."""

    seqs_in_order = False

    @lists
    async def list_histories(self, connection: Connection, after_id: str | None, limit: int) -> list[History]:
        histories = []
        for (entity, row_id, state, version), group in groupby(
            await connection.fetch(_SQL["list_histories"], after_id or _FIRST_ID, limit), lambda row: row[:4]
        ):
            moves = _moves(row for row in group if row["seq"] is not None)
            histories.append(History(entity, str(row_id), state, version, tuple(moves)))
        return histories

    @works
    async def list_events(self, connection: Connection, after_seq: int, until_seq: int, limit: int) -> list[Event]:
        rows = await connection.fetch(_SQL["list_events"], after_seq, until_seq, max(limit, 0))
        return [Event(row["row_namespace"], move) for row, move in zip(rows, _moves(rows), strict=True)]

    async def append_lines(self, lines: Sequence[LogLine]) -> None:
        if lines:
            rows = ((line.task_id, line.at, line.level, line.message, line.details, line.run_id, line.step_id) for line in lines)
            async with self._database.working() as connection:
                await connection.execute(_SQL["append_lines"], *zip(*rows, strict=True))


def _moves(rows: Iterable[asyncpg.Record]) -> list[Move]:
    """Return rows of the log as moves; columns with the prefix `row_` are not part of them."""
    return [Move(**{name: value for name, value in texts(row).items() if not name.startswith("row_")}) for row in rows]
