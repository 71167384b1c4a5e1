"""Moves for readers: the log and the ends of finished tasks, merged by seq, which here is the order of commits."""

from __future__ import annotations

import apsw
import msgspec

from treadle.kernel.store.queries import Event, Tally
from treadle.model.tasks import Move
from treadle.stores.sqlite.connection import read_value
from treadle.stores.statements import load_statements

_SQL = load_statements(__package__, "events.sql")
_decode = msgspec.json.Decoder(list[tuple[str | None, Move]]).decode


def list_events(connection: apsw.Connection, after_seq: int, until_seq: int, limit: int) -> list[Event]:
    """The moves after a seq and up to another, in their order."""
    values = {"after_seq": after_seq, "until_seq": until_seq, "limit": max(limit, 0)}
    return [Event(namespace, move) for namespace, move in _decode(read_value(connection, _SQL["list_events"], values))]


def find_last_seq(connection: apsw.Connection) -> int:
    """The last number given."""
    return int(read_value(connection, _SQL["find_last_seq"]))


def tally(connection: apsw.Connection, after_seq: int, until_seq: int) -> list[Tally]:
    """Moves of tasks by minute."""
    values = {"after_seq": after_seq, "until_seq": until_seq}
    return [Tally(*row) for row in connection.execute(_SQL["tally"], values)]
