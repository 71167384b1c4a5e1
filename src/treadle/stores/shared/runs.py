"""Reads of runs, their steps, flows and large values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from treadle.kernel.store.queries import LATEST_FAILURE, NEWEST, FailedRun, RunFilter, StepTask
from treadle.model.runs import DOINGS, Flow, FlowVersion, Run, Step
from treadle.model.states import RunState
from treadle.stores.shared.port import Port, unique


class RunReads(Port):
    """The reads of the `RunStore` that both stores have in common."""

    async def find(self, run_id: str) -> Run | None:
        return await self._find(Run, "find_run", id=run_id)

    async def find_many(self, run_ids: Sequence[str], states: Sequence[str] = ()) -> list[Run]:
        return await self._database.fetch_as(Run, "find_runs", ids=unique(run_ids), states=states or None)

    async def find_last_link(self, chain_id: str) -> Run | None:
        return await self._find(Run, "find_last_link", chain_id=chain_id)

    async def find_finished(self, run_ids: Sequence[str]) -> list[Run]:
        return await self._database.fetch_as(Run, "find_finished_runs", ids=unique(run_ids))

    async def list_matching(self, which: RunFilter, limit: int) -> list[Run]:
        return await self._database.fetch_as(Run, _list_statement(which), **await self._values(which), limit=max(limit, 0))

    async def list_failed(self, namespace: str, after: int, limit: int, before: FailedRun = LATEST_FAILURE) -> list[FailedRun]:
        values = {"namespace": namespace, "after": after, "limit": max(limit, 0)}
        rows = await self._database.fetch("list_failed_runs", **values, before_at=before.finished_at, before_id=before.id)
        return [FailedRun(*row) for row in rows]

    async def count(self, namespace: str) -> dict[str, int]:
        return dict(await self._database.fetch("count_runs", namespace=namespace))

    async def count_matching(self, which: RunFilter) -> dict[str, int]:
        return dict(await self._database.fetch("count_matching_runs", **await self._values(which)))

    async def count_doing(self, which: RunFilter, limit: int) -> dict[str, int]:
        rows = await self._database.fetch("count_doing", **await self._values(which), limit=max(limit, 0))
        return {str(DOINGS[rank]): count for rank, count in rows}

    async def _values(self, which: RunFilter) -> dict[str, Any]:
        return msgspec.structs.asdict(which) | {
            "states": which.states or None,
            "flow_ids": which.flow_ids or None,
            "created_after": which.created_after or 0,
            "created_before": NEWEST.created_at if which.created_before is None else which.created_before,
            **await self._place("find_run_created_at", which.before, which.before_id),
        }

    async def list_step_tasks(self, step_ids: Sequence[str]) -> list[StepTask]:
        return [StepTask(*row) for row in await self._database.fetch("list_step_tasks", step_ids=unique(step_ids))]

    async def list_children(self, run_id: str) -> list[str]:
        return await self._list_ids("list_children", run_id=run_id)

    async def list_inbox(self, run_id: str, limit: int) -> list[Step]:
        return await self._database.fetch_as(Step, "list_inbox", run_id=run_id, limit=limit)

    async def list_steps(self, run_id: str, after_id: str | None, limit: int) -> list[Step]:
        return await self._database.fetch_as(Step, "list_steps", run_id=run_id, after_id=after_id, limit=max(limit, 0))

    async def find_step(self, step_id: str) -> Step | None:
        return await self._find(Step, "find_step", id=step_id)

    async def find_flow(self, flow_id: str) -> Flow | None:
        return await self._find(Flow, "find_flow", id=flow_id)

    async def find_flow_version(self, namespace: str, name: str, version: int | None = None) -> FlowVersion | None:
        return await self._find(FlowVersion, "find_flow_version", namespace=namespace, name=name, version=version)

    async def list_flow_versions(self, namespace: str, name: str | None = None) -> list[FlowVersion]:
        statement = "list_newest_flows" if name is None else "list_flow_versions"
        return await self._database.fetch_as(FlowVersion, statement, namespace=namespace, name=name)

    async def find_blobs(self, digests: Sequence[str]) -> dict[str, str]:
        return dict(await self._database.fetch("find_blobs", digests=digests))


def _list_statement(which: RunFilter) -> str:
    """Return the statement that lists these runs through the most selective index."""
    if which.namespace is not None and which.doing is not None:
        return "list_runs_doing"
    if which.namespace is not None and len(which.states) == 1 and which.states != (RunState.COMPLETED,):
        return "list_runs_of_state"
    return "list_runs" if which.workflow is None else "list_runs_of_workflow"
