"""Appends to streams."""

from __future__ import annotations

from collections.abc import Sequence

from treadle.kernel.store.records import AppendStream
from treadle.stores.rules.streams import Appends, Head, Last
from treadle.stores.session import Session


async def append_streams(session: Session, rows: Sequence[AppendStream]) -> None:
    """Append to streams, inside the caller's transaction; the heads are locked in order."""
    streams = {(row.owner_id, row.name): (row.owner_id, row.name, row.namespace, row.root_id) for row in rows}
    rows_of_heads = await session.fetch("find_heads", rows=[streams[key] for key in sorted(streams)])
    heads = {(row[0], row[1]): Head(row[2], row[3], bool(row[4])) for row in rows_of_heads}
    writers = sorted({(row.owner_id, row.name, row.writer) for row in rows})
    lasts = {(row[0], row[1], row[2]): Last(*row[3:]) for row in await session.fetch("find_lasts", rows=writers)}
    appends = Appends(heads, lasts)
    appends.add(rows)
    for owner_id, name, writer, keep in appends.removed:
        await session.execute("remove_generations", owner_id=owner_id, name=name, writer=writer, keep=keep)
    if appends.chunks:
        await session.execute("put_chunks", heads=[(*key, *head) for key, head in heads.items()], chunks=appends.chunks)
    for owner_id, name, first_offset in appends.continued:
        await session.execute("continue_chunk", owner_id=owner_id, name=name, first_offset=first_offset)
