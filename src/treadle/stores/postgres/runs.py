"""Reads of runs, their steps, flows and large values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from treadle.kernel.store.queries import LATEST_FAILURE, NEWEST, FailedRun, OpenWork, Place, RunFilter, StepTask
from treadle.model.errors import StoreBusy
from treadle.model.ids import id_time
from treadle.model.runs import DOINGS, Flow, FlowVersion, Run, Step
from treadle.model.states import RunState
from treadle.model.tasks import Task
from treadle.stores.postgres.connection.connect import Connection, fetch_as, texts
from treadle.stores.postgres.database import Part, reads, works
from treadle.stores.statements import load_statements

_SQL = load_statements(__package__, "runs.sql")
_TRIES = 20


async def _values(connection: Connection, which: RunFilter) -> list[Any]:
    """Return the values of the filter in the order of its fields, and the creation time of the run before the page."""
    before = which.before or NEWEST
    if which.before is None and which.before_id is not None:
        found = await connection.fetchval(_SQL["find_run_created_at"], which.before_id)
        before = Place(id_time(which.before_id) if found is None else found, which.before_id)
    values: list[Any] = []
    for name in which.__struct_fields__[:-1]:
        match getattr(which, name):
            case tuple(items):
                values.append(list(items) or None)
            case value:
                values.append(value)
    fields = which.__struct_fields__
    values[fields.index("before_id")] = before.id
    values[fields.index("created_after")] = which.created_after or 0
    values[fields.index("created_before")] = NEWEST.created_at if which.created_before is None else which.created_before
    return [*values, before.created_at]


def _list(which: RunFilter) -> str:
    """Return the statement that lists these runs through the most selective index."""
    if which.namespace is not None and len(which.states) == 1 and which.states != (RunState.COMPLETED,):
        return "list_runs_of_state"
    return "list_runs" if which.workflow is None else "list_runs_of_workflow"


class Runs(Part):
    """The `RunStore` of PostgreSQL."""

    @works
    async def find(self, connection: Connection, run_id: str) -> Run | None:
        return next(iter(await fetch_as(connection, Run, _SQL["find_run"], run_id)), None)

    @reads
    async def find_many(self, connection: Connection, run_ids: Sequence[str], states: Sequence[str] = ()) -> list[Run]:
        return await fetch_as(connection, Run, _SQL["find_runs"], sorted(set(run_ids)), list(states) or None)

    @works
    async def find_last_link(self, connection: Connection, chain_id: str) -> Run | None:
        return next(iter(await fetch_as(connection, Run, _SQL["find_last_link"], chain_id)), None)

    @works
    async def find_finished(self, connection: Connection, run_ids: Sequence[str]) -> list[Run]:
        return await fetch_as(connection, Run, _SQL["find_finished_runs"], sorted(set(run_ids)))

    @reads
    async def list_matching(self, connection: Connection, which: RunFilter, limit: int) -> list[Run]:
        return await fetch_as(connection, Run, _SQL[_list(which)], *await _values(connection, which), max(limit, 0))

    @reads
    async def list_failed(
        self, connection: Connection, namespace: str, after: int, limit: int, before: FailedRun = LATEST_FAILURE
    ) -> list[FailedRun]:
        given = (namespace, after, max(limit, 0), before.finished_at, before.id)
        return [FailedRun(*row) for row in await connection.fetch(_SQL["list_failed_runs"], *given)]

    @reads
    async def count(self, connection: Connection, namespace: str) -> dict[str, int]:
        return {row[0]: row[1] for row in await connection.fetch(_SQL["count_runs"], namespace)}

    @reads
    async def count_matching(self, connection: Connection, which: RunFilter) -> dict[str, int]:
        return {row[0]: row[1] for row in await connection.fetch(_SQL["count_matching_runs"], *await _values(connection, which))}

    @reads
    async def count_doing(self, connection: Connection, which: RunFilter, limit: int) -> dict[str, int]:
        rows = await connection.fetch(_SQL["count_doing"], *await _values(connection, which), max(limit, 0))
        return {str(DOINGS[row[0]]): row[1] for row in rows}

    @reads
    async def list_open_work(self, connection: Connection, run_ids: Sequence[str]) -> list[OpenWork]:
        found = []
        for row in await connection.fetch(_SQL["list_open_work"], sorted(set(run_ids))):
            values = texts(row)
            rank, count, record_id = (values.pop(name) for name in ("rank", "count", "record_id"))
            found.append(OpenWork(DOINGS[rank], count, Task(**values), record_id))
        return found

    @reads
    async def list_step_tasks(self, connection: Connection, step_ids: Sequence[str]) -> list[StepTask]:
        return [StepTask(*row) for row in await connection.fetch(_SQL["list_step_tasks"], sorted(set(step_ids)))]

    @works
    async def list_children(self, connection: Connection, run_id: str) -> list[str]:
        return [row[0] for row in await connection.fetch(_SQL["list_children"], run_id)]

    @works
    async def load_steps(
        self,
        connection: Connection,
        run_id: str,
        near: Sequence[str] = (),
        rows: Sequence[str] = (),
        children_of: Sequence[str] = (),
    ) -> list[Step]:
        found: dict[str, Step] = {}
        for name, ids in (("load_near", near), ("load_rows", rows), ("load_children", children_of)):
            if ids:
                steps = await fetch_as(connection, Step, _SQL[name], run_id, list(dict.fromkeys(ids)))
                found |= {step.id: step for step in steps}
        return list(found.values())

    @works
    async def list_inbox(self, connection: Connection, run_id: str, limit: int) -> list[Step]:
        return await fetch_as(connection, Step, _SQL["list_inbox"], run_id, limit)

    @reads
    async def list_steps(self, connection: Connection, run_id: str, after_id: str | None, limit: int) -> list[Step]:
        return await fetch_as(connection, Step, _SQL["list_steps"], run_id, after_id, max(limit, 0))

    @reads
    async def find_step(self, connection: Connection, step_id: str) -> Step | None:
        return next(iter(await fetch_as(connection, Step, _SQL["find_step"], step_id)), None)

    @works
    async def find_flow(self, connection: Connection, flow_id: str) -> Flow | None:
        return next(iter(await fetch_as(connection, Flow, _SQL["find_flow"], flow_id)), None)

    @reads
    async def publish_flow(self, connection: Connection, namespace: str, name: str, flow_id: str, actor: str) -> FlowVersion:
        for _ in range(_TRIES):
            if made := await fetch_as(connection, FlowVersion, _SQL["publish_flow"], namespace, name, flow_id, actor):
                return made[0]
            newest = await fetch_as(connection, FlowVersion, _SQL["find_flow_version"], namespace, name, None)
            if newest and newest[0].flow_id == flow_id:
                return newest[0]
        raise StoreBusy(f"Other processes are publishing the flow {name}; try again.")

    @reads
    async def find_flow_version(
        self, connection: Connection, namespace: str, name: str, version: int | None = None
    ) -> FlowVersion | None:
        return next(iter(await fetch_as(connection, FlowVersion, _SQL["find_flow_version"], namespace, name, version)), None)

    @reads
    async def list_flow_versions(self, connection: Connection, namespace: str, name: str | None = None) -> list[FlowVersion]:
        return await fetch_as(connection, FlowVersion, _SQL["list_flow_versions"], namespace, name)

    @works
    async def find_blobs(self, connection: Connection, digests: Sequence[str]) -> dict[str, str]:
        return {row[0]: row[1] for row in await connection.fetch(_SQL["find_blobs"], list(digests))}
