"""The log: moves of entities, merged by seq with the ends of finished tasks, and the lines of handlers."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby

import asyncpg

from treadle.kernel.store.queries import Event, History
from treadle.model.tasks import Move
from treadle.stores.postgres.connection.connect import texts
from treadle.stores.shared import LogPort

_FIRST_ID = "00000000-0000-0000-0000-000000000000"


class Log(LogPort):
    """The `LogStore` of PostgreSQL. The order of seqs is not the order of commits (D9)."""

    seqs_in_order = False

    async def list_histories(self, after_id: str | None, limit: int) -> list[History]:
        histories = []
        rows = await self._database.fetch("list_histories", after_id=after_id or _FIRST_ID, limit=limit)
        for (entity, row_id, state, version), group in groupby(rows, lambda row: row[:4]):
            moves = _moves(row for row in group if row["seq"] is not None)
            histories.append(History(entity, str(row_id), state, version, tuple(moves)))
        return histories

    async def list_events(self, after_seq: int, until_seq: int, limit: int) -> list[Event]:
        rows = await self._database.fetch("list_events", after_seq=after_seq, until_seq=until_seq, limit=max(limit, 0))
        return [Event(row["row_namespace"], move) for row, move in zip(rows, _moves(rows), strict=True)]


def _moves(rows: Iterable[asyncpg.Record]) -> list[Move]:
    """Return rows of the log as moves; columns with the prefix `row_` are not part of them."""
    return [Move(**{name: value for name, value in texts(row).items() if not name.startswith("row_")}) for row in rows]
