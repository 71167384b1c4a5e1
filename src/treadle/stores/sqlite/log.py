"""The log: moves of entities, merged by seq with the ends of finished tasks, and the lines of handlers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import apsw
import msgspec

from treadle.kernel.store.queries import Event, History, Tally, TaskEnd
from treadle.model.tasks import LogLine, Move
from treadle.stores.sqlite.connection.connect import read_value, reading, to_json
from treadle.stores.sqlite.database import Part, reads, writes
from treadle.stores.statements import load_statements

_SQL = load_statements(__package__, "log.sql")
_decode_moves = msgspec.json.Decoder(list[Move]).decode
_decode_entities = msgspec.json.Decoder(list[tuple[str, str, str, int]]).decode
_decode_events = msgspec.json.Decoder(list[tuple[str | None, Move]]).decode
_decode_lines = msgspec.json.Decoder(list[LogLine]).decode


class Log(Part):
    """The `LogStore` of SQLite. Seqs are in the order of commits, since there is one writer."""

    seqs_in_order = True

    @reads
    def list_moves(self, connection: apsw.Connection, entity_id: str) -> list[Move]:
        return _decode_moves(read_value(connection, _SQL["list_moves"], {"entity_id": entity_id}))

    @reads
    def list_moves_of(self, connection: apsw.Connection, entity_ids: Sequence[str]) -> list[Move]:
        return _decode_moves(read_value(connection, _SQL["list_moves_of"], {"ids": to_json(list(entity_ids))}))

    @reads
    def list_takeovers(self, connection: apsw.Connection, run_id: str, limit: int) -> list[Move]:
        return _decode_moves(read_value(connection, _SQL["list_takeovers"], {"run_id": run_id, "limit": max(limit, 0)}))

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

    @reads
    def find_last_seq(self, connection: apsw.Connection) -> int:
        return int(read_value(connection, _SQL["find_last_seq"]))

    @reads
    def tally(self, connection: apsw.Connection, after_seq: int, until_seq: int) -> list[Tally]:
        return [Tally(*row) for row in connection.execute(_SQL["tally"], {"after_seq": after_seq, "until_seq": until_seq})]

    @reads
    def list_ends(self, connection: apsw.Connection, limit: int) -> list[TaskEnd]:
        return [TaskEnd(*row) for row in connection.execute(_SQL["list_ends"], {"limit": max(limit, 0)})]

    async def append_lines(self, lines: Sequence[LogLine]) -> None:
        if lines:
            await self._append_lines(lines)

    @writes
    def _append_lines(self, connection: apsw.Connection, lines: Sequence[LogLine]) -> None:
        rows = [(line.task_id, line.at, line.level, line.message, line.details, line.run_id, line.step_id) for line in lines]
        connection.execute(_SQL["append_lines"], {"rows": to_json(rows)})

    @reads
    def list_lines(self, connection: apsw.Connection, task_id: str, limit: int) -> list[LogLine]:
        return _decode_lines(read_value(connection, _SQL["list_lines"], {"task_id": task_id, "limit": max(limit, 0)}))

    @reads
    def list_run_lines(self, connection: apsw.Connection, run_id: str, limit: int) -> list[LogLine]:
        return _decode_lines(read_value(connection, _SQL["list_run_lines"], {"run_id": run_id, "limit": max(limit, 0)}))

    @reads
    def page_run_lines(
        self, connection: apsw.Connection, run_id: str, limit: int, before: int | None = None, after: int | None = None
    ) -> list[tuple[int, LogLine]]:
        name = "list_run_lines_before" if after is None else "list_run_lines_after"
        number = {"before": before} if after is None else {"after": after}
        rows: list[Any] = connection.execute(_SQL[name], {"run_id": run_id, "limit": max(limit, 0)} | number).fetchall()
        names = LogLine.__struct_fields__
        found = [(int(number), LogLine(**dict(zip(names, line, strict=True)))) for number, *line in rows]
        return found[::-1] if after is None else found
