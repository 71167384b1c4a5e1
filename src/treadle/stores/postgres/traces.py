"""Reads of whole trees of work, and of streams."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from treadle.kernel.store.queries import TreeTask
from treadle.kernel.store.records import AppendStream
from treadle.model.records import Record, Stream, StreamChunk
from treadle.model.runs import Run
from treadle.stores.postgres.connection.connect import Connection, fetch_as
from treadle.stores.postgres.database import Part, lists, reads
from treadle.stores.rules.streams import Appends, Head, Last, WriterKey
from treadle.stores.statements import load_statements

_SQL = load_statements(__package__, "traces.sql")


class Traces(Part):
    """The `TraceStore` of PostgreSQL."""

    @lists
    async def list_roots(self, connection: Connection, namespace: str, trace_id: str, limit: int) -> list[str]:
        return [row[0] for row in await connection.fetch(_SQL["list_trace_roots"], namespace, trace_id, max(limit, 0))]

    @reads
    async def list_runs(self, connection: Connection, root_ids: Sequence[str], limit: int) -> list[Run]:
        return await fetch_as(connection, Run, _SQL["list_tree_runs"], sorted(set(root_ids)), max(limit, 0))

    @lists
    async def list_tasks(self, connection: Connection, root_ids: Sequence[str], limit: int) -> list[TreeTask]:
        rows = await connection.fetch(_SQL["list_tree_tasks"], sorted(set(root_ids)), max(limit, 0))
        return [TreeTask(*row) for row in rows]

    @reads
    async def list_records(self, connection: Connection, root_ids: Sequence[str], limit: int) -> list[Record]:
        return await fetch_as(connection, Record, _SQL["list_tree_records"], sorted(set(root_ids)), max(limit, 0))


_STREAMS = load_statements(__package__, "streams.sql")


async def append_streams(connection: Connection, rows: Sequence[AppendStream]) -> None:
    """Append to streams, inside the caller's transaction; the heads are locked in order."""
    streams = {(row.owner_id, row.name): row for row in sorted(rows, key=lambda row: (row.owner_id, row.name))}
    given = [(row.owner_id, row.name, row.namespace, row.root_id) for row in streams.values()]
    heads = {(row[0], row[1]): Head(*row[2:]) for row in await connection.fetch(_STREAMS["find_heads"], *_columns(given))}
    lasts = await _find_lasts(connection, {(row.owner_id, row.name, row.writer) for row in rows})
    appends = Appends(heads, lasts)
    appends.add(rows)
    for removed in appends.removed:
        await connection.execute(_STREAMS["remove_generations"], *removed)
    if appends.chunks:
        new_heads = [(*key, *head) for key, head in heads.items()]
        await connection.execute(_STREAMS["put_chunks"], *_columns(new_heads), *_columns(appends.chunks))
    for continued in appends.continued:
        await connection.execute(_STREAMS["continue_chunk"], *continued)


def _columns(rows: Iterable[Sequence[Any]]) -> list[list[Any]]:
    return [list(column) for column in zip(*rows, strict=True)]


async def _find_lasts(connection: Connection, writers: Iterable[WriterKey]) -> dict[WriterKey, Last]:
    found = await connection.fetch(_STREAMS["find_lasts"], *_columns(sorted(writers)))
    return {(row[0], row[1], row[2]): Last(*row[3:]) for row in found}


class Streams(Part):
    """The `StreamStore` of PostgreSQL."""

    @reads
    async def list_of(self, connection: Connection, owner_ids: Sequence[str]) -> list[Stream]:
        return await fetch_as(connection, Stream, _STREAMS["list_streams"], sorted(set(owner_ids)))

    @reads
    async def list_chunks(self, connection: Connection, owner_id: str, name: str, offset: int, limit: int) -> list[StreamChunk]:
        return await fetch_as(connection, StreamChunk, _STREAMS["list_chunks"], owner_id, name, offset, max(limit, 0))

    @reads
    async def count_entries(self, connection: Connection, owner_id: str, name: str, writer: str) -> int:
        return next((last.next_start for last in (await _find_lasts(connection, [(owner_id, name, writer)])).values()), 0)
