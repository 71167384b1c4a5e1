"""Reads of whole trees of work, and of streams."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import apsw

from treadle.kernel.store.queries import TreeTask
from treadle.kernel.store.records import AppendStream
from treadle.model.records import Record, Stream, StreamChunk
from treadle.model.runs import Run
from treadle.stores.rules.streams import Appends, Head, Last
from treadle.stores.sqlite.connection.connect import fetch_as, to_json
from treadle.stores.sqlite.database import Part, reads
from treadle.stores.statements import load_statements

_SQL = load_statements(__package__, "traces.sql")


class Traces(Part):
    """The `TraceStore` of SQLite."""

    @reads
    def list_roots(self, connection: apsw.Connection, namespace: str, trace_id: str, limit: int) -> list[str]:
        values = {"namespace": namespace, "trace_id": trace_id, "limit": max(limit, 0)}
        return [str(row[0]) for row in connection.execute(_SQL["list_trace_roots"], values)]

    @reads
    def list_runs(self, connection: apsw.Connection, root_ids: Sequence[str], limit: int) -> list[Run]:
        return fetch_as(connection, Run, _SQL["list_tree_runs"], _values(root_ids, limit))

    @reads
    def list_tasks(self, connection: apsw.Connection, root_ids: Sequence[str], limit: int) -> list[TreeTask]:
        found: Any = connection.execute(_SQL["list_tree_tasks"], _values(root_ids, limit))
        return [TreeTask(*row) for row in found]

    @reads
    def list_records(self, connection: apsw.Connection, root_ids: Sequence[str], limit: int) -> list[Record]:
        return fetch_as(connection, Record, _SQL["list_tree_records"], _values(root_ids, limit))


def _values(root_ids: Sequence[str], limit: int) -> dict[str, Any]:
    return {"roots": to_json(list(dict.fromkeys(root_ids))), "limit": max(limit, 0)}


_STREAMS = load_statements(__package__, "streams.sql")


def append_streams(connection: apsw.Connection, rows: Sequence[AppendStream], now: int) -> None:
    """Append to streams, inside the caller's transaction."""
    streams = {(row.owner_id, row.name): row for row in rows}
    heads = dict.fromkeys(streams, Head())
    found: Any = connection.execute(_STREAMS["find_heads"], {"rows": to_json(list(streams))})
    heads |= {(owner_id, name): Head(offset, size, bool(truncated)) for owner_id, name, offset, size, truncated in found}
    writers = {(row.owner_id, row.name, row.writer) for row in rows}
    lasts = {each: last for each in writers if (last := _find_last(connection, *each)) is not None}
    appends = Appends(heads, lasts)
    appends.add(rows)
    values = [(*key, row.namespace, row.root_id, *heads[key]) for key, row in streams.items()]
    connection.execute(_STREAMS["put_heads"], {"rows": to_json([(*row[:6], int(row[6])) for row in values]), "now": now})
    for owner_id, name, writer, keep in appends.removed:
        connection.execute(_STREAMS["remove_generations"], {"owner_id": owner_id, "name": name, "writer": writer, "keep": keep})
    if appends.chunks:
        connection.execute(_STREAMS["put_chunks"], {"rows": to_json(appends.chunks), "now": now})
    for owner_id, name, offset in appends.continued:
        connection.execute(_STREAMS["continue_chunk"], {"owner_id": owner_id, "name": name, "first_offset": offset})


def _find_last(connection: apsw.Connection, owner_id: str, name: str, writer: str) -> Last | None:
    values = {"owner_id": owner_id, "name": name, "writer": writer}
    found: Any = connection.execute(_STREAMS["find_last"], values).fetchall()
    return Last(*found[0])._replace(continues=bool(found[0][6])) if found else None


class Streams(Part):
    """The `StreamStore` of SQLite."""

    @reads
    def list_of(self, connection: apsw.Connection, owner_ids: Sequence[str]) -> list[Stream]:
        found: Any = connection.execute(_STREAMS["list_streams"], {"ids": to_json(list(dict.fromkeys(owner_ids)))})
        names = Stream.__struct_fields__
        return [Stream(**dict(zip(names, (*row[:6], bool(row[6]), *row[7:]), strict=True))) for row in found]

    @reads
    def list_chunks(self, connection: apsw.Connection, owner_id: str, name: str, offset: int, limit: int) -> list[StreamChunk]:
        values = {"owner_id": owner_id, "name": name, "offset": offset, "limit": max(limit, 0)}
        return fetch_as(connection, StreamChunk, _STREAMS["list_chunks"], values)

    @reads
    def count_entries(self, connection: apsw.Connection, owner_id: str, name: str, writer: str) -> int:
        last = _find_last(connection, owner_id, name, writer)
        return 0 if last is None else last.next_start
