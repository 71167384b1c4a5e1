"""Reads of runs, their steps and flows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar
from uuid import UUID

from treadle.kernel.store.queries import RunFilter
from treadle.model.errors import StoreBusy
from treadle.model.runs import Flow, FlowVersion, Run, Step
from treadle.stores.postgres.connect import PACKAGE, Connection
from treadle.stores.statements import load_statements

_SQL = load_statements(PACKAGE, "runs.sql")
_TRIES = 20
T = TypeVar("T")


def _records(kind: type[T], rows: Iterable[Any]) -> list[T]:
    """Rows as records whose fields are the columns; ids become text."""
    return [kind(**{name: str(value) if isinstance(value, UUID) else value for name, value in row.items()}) for row in rows]


async def find_run(connection: Connection, run_id: str) -> Run | None:
    """The run."""
    return next(iter(_records(Run, await connection.fetch(_SQL["find_run"], run_id))), None)


async def find_finished_runs(connection: Connection, run_ids: Sequence[str]) -> list[Run]:
    """Those of the runs that are finished."""
    return _records(Run, await connection.fetch(_SQL["find_finished_runs"], sorted(set(run_ids))))


async def list_runs(connection: Connection, which: RunFilter, limit: int) -> list[Run]:
    """Runs, newest first."""
    return _records(Run, await connection.fetch(_SQL["list_runs"], *_values(which), max(limit, 0)))


def _values(which: RunFilter) -> tuple[Any, ...]:
    return (
        list(which.states) or None,
        which.namespace,
        which.workflow,
        list(which.flow_ids) or None,
        which.before_id,
        which.kind,
        which.task_list,
        which.root_id,
        which.created_after,
        which.created_before,
        which.search,
    )


async def count_runs(connection: Connection, namespace: str) -> dict[str, int]:
    """Runs by state."""
    return {row[0]: row[1] for row in await connection.fetch(_SQL["count_runs"], namespace)}


async def count_matching_runs(connection: Connection, which: RunFilter) -> dict[str, int]:
    """Runs that fit, by state."""
    return {row[0]: row[1] for row in await connection.fetch(_SQL["count_matching_runs"], *_values(which))}


async def load_steps(
    connection: Connection, run_id: str, near: Sequence[str], rows: Sequence[str], children_of: Sequence[str]
) -> list[Step]:
    """Steps near others, by id, and below others; each once."""
    found: dict[str, Step] = {}
    for name, ids in (("load_near", near), ("load_rows", rows), ("load_children", children_of)):
        if ids:
            steps = _records(Step, await connection.fetch(_SQL[name], run_id, list(dict.fromkeys(ids))))
            found |= {step.id: step for step in steps}
    return list(found.values())


async def list_inbox(connection: Connection, run_id: str, limit: int) -> list[Step]:
    """Steps with something in their inbox."""
    return _records(Step, await connection.fetch(_SQL["list_inbox"], run_id, limit))


async def list_steps(connection: Connection, run_id: str, after_id: str | None, limit: int) -> list[Step]:
    """A page of steps."""
    return _records(Step, await connection.fetch(_SQL["list_steps"], run_id, after_id, max(limit, 0)))


async def find_flow(connection: Connection, flow_id: str) -> Flow | None:
    """The flow."""
    return next(iter(_records(Flow, await connection.fetch(_SQL["find_flow"], flow_id))), None)


async def publish_flow(connection: Connection, namespace: str, name: str, flow_id: str, actor: str) -> FlowVersion:
    """The next version of the name, or the newest if it is that flow already."""
    for _ in range(_TRIES):
        if made := _records(FlowVersion, await connection.fetch(_SQL["publish_flow"], namespace, name, flow_id, actor)):
            return made[0]
        version = await find_flow_version(connection, namespace, name, None)
        if version is not None and version.flow_id == flow_id:
            return version
    raise StoreBusy(f"Others publish the flow {name} at this moment; try again.")


async def find_flow_version(connection: Connection, namespace: str, name: str, version: int | None) -> FlowVersion | None:
    """A version of a published flow."""
    rows = await connection.fetch(_SQL["find_flow_version"], namespace, name, version)
    return next(iter(_records(FlowVersion, rows)), None)


async def list_flow_versions(connection: Connection, namespace: str, name: str | None) -> list[FlowVersion]:
    """All versions of one name, or the newest of each."""
    return _records(FlowVersion, await connection.fetch(_SQL["list_flow_versions"], namespace, name))


async def find_blobs(connection: Connection, digests: Sequence[str]) -> dict[str, str]:
    """Big values by digest."""
    return {row[0]: row[1] for row in await connection.fetch(_SQL["find_blobs"], list(digests))}
