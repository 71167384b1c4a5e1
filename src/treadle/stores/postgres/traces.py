"""Reads of whole trees of work."""

from __future__ import annotations

from collections.abc import Sequence

from treadle.kernel.store.queries import TreeTask
from treadle.model.records import Record
from treadle.model.runs import Run
from treadle.stores.postgres.connection.connect import Connection, fetch_as
from treadle.stores.postgres.database import Part, lists, reads
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
