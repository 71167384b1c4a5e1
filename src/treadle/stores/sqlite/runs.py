"""Reads of runs that differ from those of PostgreSQL, and versions of flows."""

from __future__ import annotations

from collections.abc import Sequence

import apsw

from treadle.kernel.store.queries import OpenWork
from treadle.model.runs import DOINGS, FlowVersion, Step
from treadle.stores.shared import RunReads, unique
from treadle.stores.sqlite.connection.connect import fetch_as, to_json
from treadle.stores.sqlite.database import Part, reads, writes
from treadle.stores.sqlite.tasks import decode_tasks
from treadle.stores.statements import load_statements

_SQL = load_statements(__package__, "runs.sql")


class Runs(Part, RunReads):
    """The `RunStore` of SQLite."""

    async def list_open_work(self, run_ids: Sequence[str]) -> list[OpenWork]:
        rows = await self._database.fetch("list_open_work", run_ids=unique(run_ids))
        return [OpenWork(DOINGS[rank], count, decode_tasks(f"[{task}]")[0], record_id) for rank, count, task, record_id in rows]

    @reads
    def load_steps(
        self,
        connection: apsw.Connection,
        run_id: str,
        near: Sequence[str] = (),
        rows: Sequence[str] = (),
        children_of: Sequence[str] = (),
    ) -> list[Step]:
        steps: dict[str, Step] = {}
        for name, key, ids in (("load_near", "near", near), ("load_rows", "rows", rows), ("load_children", "parents", children_of)):
            if ids:
                values = {"run_id": run_id, key: to_json(unique(ids))}
                steps |= {step.id: step for step in fetch_as(connection, Step, _SQL[name], values)}
        return list(steps.values())

    @writes
    def publish_flow(self, connection: apsw.Connection, namespace: str, name: str, flow_id: str, actor: str) -> FlowVersion:
        values = {"namespace": namespace, "name": name, "flow_id": flow_id, "actor": actor, "now": self._database.now()}
        connection.execute(_SQL["publish_flow"], values)
        return fetch_as(connection, FlowVersion, _SQL["find_flow_version"], values | {"version": None})[0]
