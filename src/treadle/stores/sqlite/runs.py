"""Reads of runs, their steps, flows and large values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import apsw

from treadle.kernel.store.queries import LATEST_FAILURE, NEWEST, FailedRun, OpenWork, Place, RunFilter, StepTask
from treadle.model.ids import id_time
from treadle.model.runs import DOINGS, Flow, FlowVersion, Run, Step
from treadle.model.states import RunState
from treadle.stores.sqlite.connection.connect import fetch_as, to_json
from treadle.stores.sqlite.database import Part, reads, writes
from treadle.stores.sqlite.tasks import decode_tasks
from treadle.stores.statements import load_statements

_SQL = load_statements(__package__, "runs.sql")


def _values(connection: apsw.Connection, which: RunFilter) -> dict[str, Any]:
    values = {name: getattr(which, name) for name in which.__struct_fields__ if name != "before"}
    for name in ("states", "flow_ids"):
        values[name] = to_json(values[name]) if values[name] else None
    before = which.before or NEWEST
    if which.before is None and which.before_id is not None:
        found: Any = connection.execute(_SQL["find_run_created_at"], {"id": which.before_id}).fetchall()
        before = Place(int(found[0][0]) if found else id_time(which.before_id), which.before_id)
    bounds = {
        "created_after": which.created_after or 0,
        "created_before": NEWEST.created_at if which.created_before is None else which.created_before,
    }
    return values | bounds | {"before_at": before.created_at, "before_id": before.id}


def _list(which: RunFilter) -> str:
    """Return the statement that lists these runs through the most selective index."""
    if which.namespace is not None and which.doing is not None:
        return "list_runs_doing"
    if which.namespace is not None and len(which.states) == 1 and which.states != (RunState.COMPLETED,):
        return "list_runs_of_state"
    return "list_runs" if which.workflow is None else "list_runs_of_workflow"


class Runs(Part):
    """The `RunStore` of SQLite."""

    @reads
    def find(self, connection: apsw.Connection, run_id: str) -> Run | None:
        return next(iter(fetch_as(connection, Run, _SQL["find_run"], {"id": run_id})), None)

    @reads
    def find_many(self, connection: apsw.Connection, run_ids: Sequence[str], states: Sequence[str] = ()) -> list[Run]:
        values = {"ids": to_json(list(dict.fromkeys(run_ids))), "states": to_json(list(states)) if states else None}
        return fetch_as(connection, Run, _SQL["find_runs"], values)

    @reads
    def find_last_link(self, connection: apsw.Connection, chain_id: str) -> Run | None:
        return next(iter(fetch_as(connection, Run, _SQL["find_last_link"], {"chain_id": chain_id})), None)

    @reads
    def find_finished(self, connection: apsw.Connection, run_ids: Sequence[str]) -> list[Run]:
        return fetch_as(connection, Run, _SQL["find_finished_runs"], {"ids": to_json(list(dict.fromkeys(run_ids)))})

    @reads
    def list_matching(self, connection: apsw.Connection, which: RunFilter, limit: int) -> list[Run]:
        return fetch_as(connection, Run, _SQL[_list(which)], _values(connection, which) | {"limit": max(limit, 0)})

    @reads
    def list_failed(
        self, connection: apsw.Connection, namespace: str, after: int, limit: int, before: FailedRun = LATEST_FAILURE
    ) -> list[FailedRun]:
        given = {"namespace": namespace, "after": after, "limit": max(limit, 0)}
        given |= {"before_at": before.finished_at, "before_id": before.id}
        found: Any = connection.execute(_SQL["list_failed_runs"], given)
        return [FailedRun(*row) for row in found]

    @reads
    def count(self, connection: apsw.Connection, namespace: str) -> dict[str, int]:
        return {str(state): int(count) for state, count in connection.execute(_SQL["count_runs"], {"namespace": namespace})}

    @reads
    def count_matching(self, connection: apsw.Connection, which: RunFilter) -> dict[str, int]:
        return {
            str(state): int(count) for state, count in connection.execute(_SQL["count_matching_runs"], _values(connection, which))
        }

    @reads
    def count_doing(self, connection: apsw.Connection, which: RunFilter, limit: int) -> dict[str, int]:
        found = connection.execute(_SQL["count_doing"], _values(connection, which) | {"limit": max(limit, 0)})
        return {str(DOINGS[int(rank)]): int(count) for rank, count in found}

    @reads
    def list_open_work(self, connection: apsw.Connection, run_ids: Sequence[str]) -> list[OpenWork]:
        found = connection.execute(_SQL["list_open_work"], {"run_ids": to_json(list(dict.fromkeys(run_ids)))})
        return [
            OpenWork(DOINGS[int(rank)], int(count), decode_tasks(f"[{task}]")[0], record_id)
            for rank, count, task, record_id in found
        ]

    @reads
    def list_step_tasks(self, connection: apsw.Connection, step_ids: Sequence[str]) -> list[StepTask]:
        found: Any = connection.execute(_SQL["list_step_tasks"], {"step_ids": to_json(list(dict.fromkeys(step_ids)))})
        return [StepTask(*row) for row in found]

    @reads
    def list_children(self, connection: apsw.Connection, run_id: str) -> list[str]:
        return [str(row[0]) for row in connection.execute(_SQL["list_children"], {"run_id": run_id})]

    @reads
    def load_steps(
        self,
        connection: apsw.Connection,
        run_id: str,
        near: Sequence[str] = (),
        rows: Sequence[str] = (),
        children_of: Sequence[str] = (),
    ) -> list[Step]:
        found: dict[str, Step] = {}
        for name, key, ids in (("load_near", "near", near), ("load_rows", "rows", rows), ("load_children", "parents", children_of)):
            if ids:
                values = {"run_id": run_id, key: to_json(list(dict.fromkeys(ids)))}
                found |= {step.id: step for step in fetch_as(connection, Step, _SQL[name], values)}
        return list(found.values())

    @reads
    def list_inbox(self, connection: apsw.Connection, run_id: str, limit: int) -> list[Step]:
        return fetch_as(connection, Step, _SQL["list_inbox"], {"run_id": run_id, "limit": limit})

    @reads
    def list_steps(self, connection: apsw.Connection, run_id: str, after_id: str | None, limit: int) -> list[Step]:
        values = {"run_id": run_id, "after_id": after_id, "limit": max(limit, 0)}
        return fetch_as(connection, Step, _SQL["list_steps"], values)

    @reads
    def find_step(self, connection: apsw.Connection, step_id: str) -> Step | None:
        return next(iter(fetch_as(connection, Step, _SQL["find_step"], {"id": step_id})), None)

    @reads
    def find_flow(self, connection: apsw.Connection, flow_id: str) -> Flow | None:
        return next(iter(fetch_as(connection, Flow, _SQL["find_flow"], {"id": flow_id})), None)

    @writes
    def publish_flow(self, connection: apsw.Connection, namespace: str, name: str, flow_id: str, actor: str) -> FlowVersion:
        values = {"namespace": namespace, "name": name, "flow_id": flow_id, "actor": actor, "now": self._database.now()}
        connection.execute(_SQL["publish_flow"], values)
        return fetch_as(
            connection, FlowVersion, _SQL["find_flow_version"], {"namespace": namespace, "name": name, "version": None}
        )[0]

    @reads
    def find_flow_version(
        self, connection: apsw.Connection, namespace: str, name: str, version: int | None = None
    ) -> FlowVersion | None:
        values = {"namespace": namespace, "name": name, "version": version}
        return next(iter(fetch_as(connection, FlowVersion, _SQL["find_flow_version"], values)), None)

    @reads
    def list_flow_versions(self, connection: apsw.Connection, namespace: str, name: str | None = None) -> list[FlowVersion]:
        statement = _SQL["list_newest_flows" if name is None else "list_flow_versions"]
        return fetch_as(connection, FlowVersion, statement, {"namespace": namespace, "name": name})

    @reads
    def find_blobs(self, connection: apsw.Connection, digests: Sequence[str]) -> dict[str, str]:
        found = connection.execute(_SQL["find_blobs"], {"digests": to_json(list(digests))})
        return {str(digest): str(value) for digest, value in found}
