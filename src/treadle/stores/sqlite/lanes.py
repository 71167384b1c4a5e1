"""Lanes and their ids: looked up in memory, made where they are missing."""

from __future__ import annotations

from collections.abc import Iterable

import apsw
import msgspec

from treadle.model.names import Lane
from treadle.stores.statements import load_statements

_SQL = load_statements(__package__, "insert.sql")
_INSERT, _LIST = _SQL["insert_lanes"], _SQL["list_lanes"]


def list_lanes(connection: apsw.Connection) -> dict[int, Lane]:
    """All lanes that there are."""
    return {lane_id: Lane(*names) for lane_id, *names in connection.execute(_LIST)}


def make_lanes(connection: apsw.Connection, lanes: Iterable[Lane]) -> dict[Lane, int]:
    """The ids of all lanes, these among them, inside a transaction of the caller's."""
    rows = msgspec.json.encode(sorted(lanes)).decode()  # the same ids whatever the order of a set
    connection.execute(_INSERT, {"rows": rows})
    return {lane: lane_id for lane_id, lane in list_lanes(connection).items()}
