"""Reads of records, their items, messages to runs, and outcomes of effects."""

from __future__ import annotations

from treadle.kernel.store.database import RecordStore
from treadle.kernel.store.records import RecordFilter


class SqliteRecords(RecordStore):
    """The `RecordStore` of SQLite."""

    def _list_statement(self, which: RecordFilter) -> str:
        """Return the statement with the index that fits."""
        if which.task_id is not None:
            return "list_records_of_task"
        if which.run_id is not None:
            return "list_records_of_run"
        return "list_live_records" if which.live and which.namespace is not None else "list_records"
