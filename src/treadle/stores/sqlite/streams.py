"""Appends to streams."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import apsw

from treadle.kernel.store.records import AppendStream
from treadle.stores.rules.streams import Appends, Head, Last
from treadle.stores.sqlite.connection.connect import to_json
from treadle.stores.statements import load_statements

_SQL = load_statements(__package__, "streams.sql")


def append_streams(connection: apsw.Connection, rows: Sequence[AppendStream], now: int) -> None:
    """Append to streams, inside the caller's transaction."""
    streams = {(row.owner_id, row.name): row for row in rows}
    heads = dict.fromkeys(streams, Head())
    found: Any = connection.execute(_SQL["find_heads"], {"rows": to_json(list(streams))})
    heads |= {(owner_id, name): Head(offset, size, bool(truncated)) for owner_id, name, offset, size, truncated in found}
    writers = {(row.owner_id, row.name, row.writer) for row in rows}
    lasts = {each: last for each in writers if (last := _find_last(connection, *each)) is not None}
    appends = Appends(heads, lasts)
    appends.add(rows)
    values = [(*key, row.namespace, row.root_id, *heads[key]) for key, row in streams.items()]
    connection.execute(_SQL["put_heads"], {"rows": to_json([(*row[:6], int(row[6])) for row in values]), "now": now})
    for owner_id, name, writer, keep in appends.removed:
        connection.execute(_SQL["remove_generations"], {"owner_id": owner_id, "name": name, "writer": writer, "keep": keep})
    if appends.chunks:
        connection.execute(_SQL["put_chunks"], {"rows": to_json(appends.chunks), "now": now})
    for owner_id, name, offset in appends.continued:
        connection.execute(_SQL["continue_chunk"], {"owner_id": owner_id, "name": name, "first_offset": offset})


def _find_last(connection: apsw.Connection, owner_id: str, name: str, writer: str) -> Last | None:
    values = {"owner_id": owner_id, "name": name, "writer": writer}
    found: Any = connection.execute(_SQL["find_last"], values).fetchall()
    return Last(*found[0])._replace(continues=bool(found[0][6])) if found else None
