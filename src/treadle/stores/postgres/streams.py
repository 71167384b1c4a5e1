"""Appends to streams."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from treadle.kernel.store.records import AppendStream
from treadle.stores.postgres.connection.connect import Connection
from treadle.stores.rules.streams import Appends, Head, Last, WriterKey
from treadle.stores.statements import load_statements

_SQL = load_statements(__package__, "streams.sql")


async def append_streams(connection: Connection, rows: Sequence[AppendStream]) -> None:
    """Append to streams, inside the caller's transaction; the heads are locked in order."""
    streams = {(row.owner_id, row.name): row for row in sorted(rows, key=lambda row: (row.owner_id, row.name))}
    given = [(row.owner_id, row.name, row.namespace, row.root_id) for row in streams.values()]
    heads = {(row[0], row[1]): Head(*row[2:]) for row in await connection.fetch(_SQL["find_heads"], *_columns(given))}
    lasts = await _find_lasts(connection, {(row.owner_id, row.name, row.writer) for row in rows})
    appends = Appends(heads, lasts)
    appends.add(rows)
    for removed in appends.removed:
        await connection.execute(_SQL["remove_generations"], *removed)
    if appends.chunks:
        new_heads = [(*key, *head) for key, head in heads.items()]
        await connection.execute(_SQL["put_chunks"], *_columns(new_heads), *_columns(appends.chunks))
    for continued in appends.continued:
        await connection.execute(_SQL["continue_chunk"], *continued)


def _columns(rows: Iterable[Sequence[Any]]) -> list[list[Any]]:
    return [list(column) for column in zip(*rows, strict=True)]


async def _find_lasts(connection: Connection, writers: Iterable[WriterKey]) -> dict[WriterKey, Last]:
    found = await connection.fetch(_SQL["find_lasts"], *_columns(sorted(writers)))
    return {(row[0], row[1], row[2]): Last(*row[3:]) for row in found}
