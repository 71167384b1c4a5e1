"""The log: moves of entities, merged by seq with the ends of finished tasks, and the lines of handlers."""

from __future__ import annotations

from collections.abc import Sequence

import apsw
import msgspec

from treadle.kernel.store.queries import Event, History
from treadle.model.tasks import LogLine, Move
from treadle.stores.shared import LogReads
from treadle.stores.sqlite.connection.connect import read_value, reading, to_json
from treadle.stores.sqlite.database import Part, reads, writes
from treadle.stores.statements import load_statements

_SQL = load_statements(__package__, "log.sql")
_decode_moves = msgspec.json.Decoder(list[Move]).decode
_decode_entities = msgspec.json.Decoder(list[tuple[str, str, str, int]]).decode
_decode_events = msgspec.json.Decoder(list[tuple[str | None, Move]]).decode


class Log(Part, LogReads):
    """The `LogStore` of SQLite. Seqs are in the order of commits, since there is one writer."""

    seqs_in_order = True

    @reads
    def list_histories(self, connection: apsw.Connection, after_id: str | None, limit: int) -> list[History]:
        moves: dict[str, list[Move]] = {}
        with reading(connection):
            found = read_value(connection, _SQL["list_entities"], {"after_id": after_id or "", "limit": max(limit, 0)})
            entities = _decode_entities(found)
            ids = to_json([entity_id for _, entity_id, _, _ in entities])
            found = read_value(connection, _SQL["list_moves_of"], {"ids": ids})
        for move in _decode_moves(found):
            moves.setdefault(move.entity_id, []).append(move)
        return [History(*entity, tuple(moves.get(entity[1], ()))) for entity in entities]

    @reads
    def list_events(self, connection: apsw.Connection, after_seq: int, until_seq: int, limit: int) -> list[Event]:
        values = {"after_seq": after_seq, "until_seq": until_seq, "limit": max(limit, 0)}
        return [Event(namespace, move) for namespace, move in _decode_events(read_value(connection, _SQL["list_events"], values))]

    async def append_lines(self, lines: Sequence[LogLine]) -> None:
        if lines:
            await self._append_lines(lines)

    @writes
    def _append_lines(self, connection: apsw.Connection, lines: Sequence[LogLine]) -> None:
        rows = [(line.task_id, line.at, line.level, line.message, line.details, line.run_id, line.step_id) for line in lines]
        connection.execute(_SQL["append_lines"], {"rows": to_json(rows)})
