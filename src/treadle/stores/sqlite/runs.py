"""Reads of runs that differ from those of PostgreSQL."""

from __future__ import annotations

from collections.abc import Sequence

from treadle.kernel.store.queries import OpenWork
from treadle.model.runs import DOINGS
from treadle.stores.shared import RunPort, unique
from treadle.stores.sqlite.tasks import decode_tasks


class Runs(RunPort):
    """The `RunStore` of SQLite."""

    async def list_open_work(self, run_ids: Sequence[str]) -> list[OpenWork]:
        rows = await self._database.fetch("list_open_work", run_ids=unique(run_ids))
        return [OpenWork(DOINGS[rank], count, decode_tasks(f"[{task}]")[0], record_id) for rank, count, task, record_id in rows]
