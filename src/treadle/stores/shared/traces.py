"""Reads of whole trees of work, and of streams."""

from __future__ import annotations

from collections.abc import Sequence

from treadle.kernel.store.queries import TreeTask
from treadle.model.records import Record, Stream, StreamChunk
from treadle.model.runs import Run
from treadle.stores.shared.port import Port, unique


class Traces(Port):
    """The `TraceStore` of both stores."""

    async def list_roots(self, namespace: str, trace_id: str, limit: int) -> list[str]:
        return await self._list_ids("list_trace_roots", namespace=namespace, trace_id=trace_id, limit=max(limit, 0))

    async def list_runs(self, root_ids: Sequence[str], limit: int) -> list[Run]:
        return await self._database.fetch_as(Run, "list_tree_runs", roots=unique(root_ids), limit=max(limit, 0))

    async def list_tasks(self, root_ids: Sequence[str], limit: int) -> list[TreeTask]:
        rows = await self._database.fetch("list_tree_tasks", roots=unique(root_ids), limit=max(limit, 0))
        return [TreeTask(*row) for row in rows]

    async def list_records(self, root_ids: Sequence[str], limit: int) -> list[Record]:
        return await self._database.fetch_as(Record, "list_tree_records", roots=unique(root_ids), limit=max(limit, 0))


class Streams(Port):
    """The `StreamStore` of both stores; `streams.py` of each appends."""

    async def list_of(self, owner_ids: Sequence[str]) -> list[Stream]:
        return await self._database.fetch_as(Stream, "list_streams", ids=unique(owner_ids))

    async def list_chunks(self, owner_id: str, name: str, offset: int, limit: int) -> list[StreamChunk]:
        values = {"owner_id": owner_id, "name": name, "offset": offset, "limit": max(limit, 0)}
        return await self._database.fetch_as(StreamChunk, "list_chunks", **values)

    async def count_entries(self, owner_id: str, name: str, writer: str) -> int:
        rows = await self._database.fetch("find_next_entry", owner_id=owner_id, name=name, writer=writer)
        return int(rows[0][0]) if rows else 0
