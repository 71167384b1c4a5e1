"""Reads of runs, their steps, flows and large values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from treadle.kernel.store.queries import FailedRun, OpenWork, RunFilter, StepTask
from treadle.model.activity import DOINGS
from treadle.model.errors import StoreBusy
from treadle.model.runs import Flow, FlowVersion, Run, Step
from treadle.model.tasks import Task
from treadle.stores.postgres.connection.connect import Connection, fetch_as, texts
from treadle.stores.postgres.parts import Part, reads, works
from treadle.stores.statements import load_statements

_SQL = load_statements(__package__, "runs.sql")
_TRIES = 20


def _values(which: RunFilter) -> list[Any]:
    return [list(value) or None if isinstance(value := getattr(which, name), tuple) else value for name in which.__slots__]


class Runs(Part):
    """The `RunStore` of PostgreSQL."""

    @works
    async def find_run(self, connection: Connection, run_id: str) -> Run | None:
        return next(iter(await fetch_as(connection, Run, _SQL["find_run"], run_id)), None)

    @works
    async def find_finished_runs(self, connection: Connection, run_ids: Sequence[str]) -> list[Run]:
        return await fetch_as(connection, Run, _SQL["find_finished_runs"], sorted(set(run_ids)))

    @reads
    async def list_runs(self, connection: Connection, which: RunFilter, limit: int) -> list[Run]:
        return await fetch_as(connection, Run, _SQL["list_runs"], *_values(which), max(limit, 0))

    @reads
    async def list_failed_runs(self, connection: Connection, namespace: str, after: int, limit: int) -> list[FailedRun]:
        return [FailedRun(*row) for row in await connection.fetch(_SQL["list_failed_runs"], namespace, after, max(limit, 0))]

    @reads
    async def count_runs(self, connection: Connection, namespace: str) -> dict[str, int]:
        return {row[0]: row[1] for row in await connection.fetch(_SQL["count_runs"], namespace)}

    @reads
    async def count_matching_runs(self, connection: Connection, which: RunFilter) -> dict[str, int]:
        return {row[0]: row[1] for row in await connection.fetch(_SQL["count_matching_runs"], *_values(which))}

    @reads
    async def count_doing(self, connection: Connection, which: RunFilter, limit: int) -> dict[str, int]:
        rows = await connection.fetch(_SQL["count_doing"], *_values(which), max(limit, 0))
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
