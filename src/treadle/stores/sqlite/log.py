"""The log: moves of entities, merged by seq with the ends of finished tasks, and the lines of handlers."""

from __future__ import annotations

import msgspec

from treadle.kernel.store.queries import Event, History
from treadle.model.tasks import Move
from treadle.stores.shared import LogPort, reads
from treadle.stores.sqlite.database import SqliteSession


class Log(LogPort):
    """The `LogStore` of SQLite. Seqs are in the order of commits, since there is one writer."""

    seqs_in_order = True

    @reads
    async def list_histories(self, session: SqliteSession, after_id: str | None, limit: int) -> list[History]:
        moves: dict[str, list[Move]] = {}
        entities = await session.fetch("list_entities", after_id=after_id or "", limit=max(limit, 0))
        for move in await session.fetch_as(Move, "list_moves_of", ids=[entity_id for _, entity_id, _, _ in entities]):
            moves.setdefault(move.entity_id, []).append(move)
        return [
            History(entity, entity_id, state, version, tuple(moves.get(entity_id, ())))
            for entity, entity_id, state, version in entities
        ]

    async def list_events(self, after_seq: int, until_seq: int, limit: int) -> list[Event]:
        rows = await self._database.fetch("list_events", after_seq=after_seq, until_seq=until_seq, limit=max(limit, 0))
        return [Event(namespace, msgspec.convert(move, Move)) for namespace, move in rows]
