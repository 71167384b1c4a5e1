"""Reads of whole trees of work."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import apsw

from treadle.kernel.store.queries import TreeTask
from treadle.model.records import Record
from treadle.model.runs import Run
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
