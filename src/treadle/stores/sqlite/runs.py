"""Reads of runs, their steps and flows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import apsw
import msgspec

from treadle.kernel.store.queries import RunFilter
from treadle.model.runs import Flow, FlowVersion, Run, Step
from treadle.stores.sqlite.connection import fetch_as, writing
from treadle.stores.statements import load_statements

_SQL = load_statements(__package__, "runs.sql")
_encode = msgspec.json.Encoder().encode
T = TypeVar("T")


def _records(connection: apsw.Connection, kind: type[T], name: str, values: dict[str, Any]) -> list[T]:
    return fetch_as(connection, kind, _SQL[name], values)


def find_run(connection: apsw.Connection, run_id: str) -> Run | None:
    """The run."""
    return next(iter(_records(connection, Run, "find_run", {"id": run_id})), None)


def find_finished_runs(connection: apsw.Connection, run_ids: Sequence[str]) -> list[Run]:
    """Those of the runs that are finished."""
    return _records(connection, Run, "find_finished_runs", {"ids": _encode(list(dict.fromkeys(run_ids))).decode()})


def list_runs(connection: apsw.Connection, which: RunFilter, limit: int) -> list[Run]:
    """Runs, newest first."""
    return _records(connection, Run, "list_runs", _values(which) | {"limit": max(limit, 0)})


def _values(which: RunFilter) -> dict[str, Any]:
    return {
        "states": _encode(which.states).decode() if which.states else None,
        "namespace": which.namespace,
        "workflow": which.workflow,
        "flow_ids": _encode(which.flow_ids).decode() if which.flow_ids else None,
        "before_id": which.before_id,
        "kind": which.kind,
        "task_list": which.task_list,
        "root_id": which.root_id,
        "created_after": which.created_after,
        "created_before": which.created_before,
        "search": which.search,
    }


def count_runs(connection: apsw.Connection, namespace: str) -> dict[str, int]:
    """Runs by state."""
    return {str(state): int(count) for state, count in connection.execute(_SQL["count_runs"], {"namespace": namespace})}


def count_matching_runs(connection: apsw.Connection, which: RunFilter) -> dict[str, int]:
    """Runs that fit, by state."""
    return {str(state): int(count) for state, count in connection.execute(_SQL["count_matching_runs"], _values(which))}


def load_steps(
    connection: apsw.Connection, run_id: str, near: Sequence[str], rows: Sequence[str], children_of: Sequence[str]
) -> list[Step]:
    """Steps near others, by id, and below others; each once."""
    found: dict[str, Step] = {}
    for name, key, ids in (("load_near", "near", near), ("load_rows", "rows", rows), ("load_children", "parents", children_of)):
        if ids:
            values = {"run_id": run_id, key: _encode(list(dict.fromkeys(ids))).decode()}
            found |= {step.id: step for step in _records(connection, Step, name, values)}
    return list(found.values())


def list_inbox(connection: apsw.Connection, run_id: str, limit: int) -> list[Step]:
    """Steps with something in their inbox."""
    return _records(connection, Step, "list_inbox", {"run_id": run_id, "limit": limit})


def list_steps(connection: apsw.Connection, run_id: str, after_id: str | None, limit: int) -> list[Step]:
    """A page of steps."""
    return _records(connection, Step, "list_steps", {"run_id": run_id, "after_id": after_id, "limit": max(limit, 0)})


def find_flow(connection: apsw.Connection, flow_id: str) -> Flow | None:
    """The flow."""
    return next(iter(_records(connection, Flow, "find_flow", {"id": flow_id})), None)


def publish_flow(connection: apsw.Connection, namespace: str, name: str, flow_id: str, actor: str, now: int) -> FlowVersion:
    """The next version of the name, or the newest if it is that flow already."""
    values = {"namespace": namespace, "name": name, "flow_id": flow_id, "actor": actor, "now": now}
    with writing(connection):
        connection.execute(_SQL["publish_flow"], values)
        version = find_flow_version(connection, namespace, name, None)
    if version is None:
        raise LookupError(name)
    return version


def find_flow_version(connection: apsw.Connection, namespace: str, name: str, version: int | None) -> FlowVersion | None:
    """A version of a published flow."""
    values = {"namespace": namespace, "name": name, "version": version}
    return next(iter(_records(connection, FlowVersion, "find_flow_version", values)), None)


def list_flow_versions(connection: apsw.Connection, namespace: str, name: str | None) -> list[FlowVersion]:
    """All versions of one name, or the newest of each."""
    statement = "list_newest_flows" if name is None else "list_flow_versions"
    return _records(connection, FlowVersion, statement, {"namespace": namespace, "name": name})


def find_blobs(connection: apsw.Connection, digests: Sequence[str]) -> dict[str, str]:
    """Big values by digest."""
    return {
        str(digest): str(value)
        for digest, value in connection.execute(_SQL["find_blobs"], {"digests": _encode(list(digests)).decode()})
    }
