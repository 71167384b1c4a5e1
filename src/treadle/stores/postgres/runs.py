"""Reads of runs that differ from those of SQLite."""

from __future__ import annotations

from collections.abc import Sequence

from treadle.kernel.store.queries import OpenWork
from treadle.model.runs import DOINGS
from treadle.model.tasks import Task
from treadle.stores.postgres.connection.connect import texts
from treadle.stores.shared import RunPort, unique


class Runs(RunPort):
    """The `RunStore` of PostgreSQL."""

    async def list_open_work(self, run_ids: Sequence[str]) -> list[OpenWork]:
        work = []
        for row in await self._database.fetch("list_open_work", run_ids=unique(run_ids)):
            values = texts(row)
            rank, count, record_id = (values.pop(name) for name in ("rank", "count", "record_id"))
            work.append(OpenWork(DOINGS[rank], count, Task(**values), record_id))
        return work
