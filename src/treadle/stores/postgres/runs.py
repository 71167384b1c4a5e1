"""Reads of runs that differ from those of SQLite, and versions of flows."""

from __future__ import annotations

from collections.abc import Sequence

from treadle.kernel.store.queries import OpenWork
from treadle.model.errors import StoreBusy
from treadle.model.runs import DOINGS, FlowVersion, Step
from treadle.model.tasks import Task
from treadle.stores.postgres.connection.connect import Connection, fetch_as, texts
from treadle.stores.postgres.database import Part, reads, works
from treadle.stores.shared import RunReads, unique
from treadle.stores.statements import load_statements

_SQL = load_statements(__package__, "runs.sql")
_TRIES = 20


class Runs(Part, RunReads):
    """The `RunStore` of PostgreSQL."""

    async def list_open_work(self, run_ids: Sequence[str]) -> list[OpenWork]:
        work = []
        for row in await self._database.fetch("list_open_work", run_ids=unique(run_ids)):
            values = texts(row)
            rank, count, record_id = (values.pop(name) for name in ("rank", "count", "record_id"))
            work.append(OpenWork(DOINGS[rank], count, Task(**values), record_id))
        return work

    @works
    async def load_steps(
        self,
        connection: Connection,
        run_id: str,
        near: Sequence[str] = (),
        rows: Sequence[str] = (),
        children_of: Sequence[str] = (),
    ) -> list[Step]:
        steps: dict[str, Step] = {}
        for name, ids in (("load_near", near), ("load_rows", rows), ("load_children", children_of)):
            if ids:
                steps |= {step.id: step for step in await fetch_as(connection, Step, _SQL[name], run_id, unique(ids))}
        return list(steps.values())

    @reads
    async def publish_flow(self, connection: Connection, namespace: str, name: str, flow_id: str, actor: str) -> FlowVersion:
        for _ in range(_TRIES):
            if inserted := await fetch_as(connection, FlowVersion, _SQL["publish_flow"], namespace, name, flow_id, actor):
                return inserted[0]
            newest = await fetch_as(connection, FlowVersion, _SQL["find_flow_version"], namespace, name, None)
            if newest and newest[0].flow_id == flow_id:
                return newest[0]
        raise StoreBusy(f"Other processes are publishing the flow {name}; try again.")
