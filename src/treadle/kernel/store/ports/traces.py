"""The port for traces: everything that belongs to trees of work, by their root ids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from treadle.kernel.store.ports.clock import StoreClock
from treadle.kernel.store.queries import TreeTask
from treadle.model.records import Record
from treadle.model.runs import Run


class TraceStore(StoreClock, Protocol):
    """Reads of whole trees; each uses an index, and costs as much as the trees have rows, up to `limit`."""

    async def list_trace_roots(self, namespace: str, trace_id: str, limit: int) -> list[str]:
        """Return up to `limit` ids of the runs and tasks that began a tree in this trace, newest first."""

    async def list_tree_runs(self, root_ids: Sequence[str], limit: int) -> list[Run]:
        """Return up to `limit` runs of the trees, oldest first (by id)."""

    async def list_tree_tasks(self, root_ids: Sequence[str], limit: int) -> list[TreeTask]:
        """Return up to `limit` tasks of the trees, live and finished, oldest first (by id)."""

    async def list_tree_records(self, root_ids: Sequence[str], limit: int) -> list[Record]:
        """Return up to `limit` records of the trees (such as approvals and external jobs), oldest first (by id)."""
