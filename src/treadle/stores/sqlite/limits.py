"""Limits by admission: a task with a limit key may be taken only once its over-limit bit is clear (ADR 6).

Every transaction that may have made room, or that added a waiting task, ends with `admit` for the keys that it touched.
Since there is one writer, this suffices to admit no more tasks than a limit allows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import apsw

from treadle.model.lists import HANDLER_KEY, Limit, handler_key
from treadle.stores.sqlite.connection.connect import writing
from treadle.stores.statements import load_statements

_SQL = load_statements(__package__, "limits.sql")

Key = tuple[str, str]
"""A namespace and a limit key in it."""

BATCH = 10_000
"""The maximum number of tasks of one key that one transaction changes; later transactions change the rest."""


def admit(connection: apsw.Connection, keys: Iterable[Key]) -> set[int]:
    """Admit as many tasks of each key as there is room for, inside the caller's transaction; return their lanes."""
    lanes: set[int] = set()
    for namespace, key in sorted(keys):
        lanes.update(lane_id for (lane_id,) in connection.execute(_SQL["admit"], _of(namespace, key, most=BATCH)))
    return lanes


def put_limits(connection: apsw.Connection, limits: Mapping[Key, int]) -> None:
    """Store the limits that callers gave, inside the caller's transaction; `admit` must follow."""
    for (namespace, key), max_running in limits.items():
        if connection.execute(_SQL["put_limit"], _of(namespace, key, max_running=max_running)).fetchall():
            connection.execute(_SQL["recall"], _of(namespace, key, most=BATCH))


def list_run_keys(connection: apsw.Connection, run_id: str) -> list[Key]:
    """Return the limit keys of the run's live tasks."""
    return [(namespace, key) for namespace, key in connection.execute(_SQL["list_run_keys"], {"run_id": run_id})]


def recall_list(connection: apsw.Connection, namespace: str, task_list: str) -> set[Key]:
    """Withdraw the admission of a list's unclaimed tasks, so that others with their keys may run; return the keys."""
    values = {"namespace": namespace, "task_list": task_list}
    return {(namespace, key) for (key,) in connection.execute(_SQL["recall_list"], values)}


def list_waiting_keys(connection: apsw.Connection, namespace: str, task_list: str) -> set[Key]:
    """Return the keys that tasks of a list wait for."""
    values = {"namespace": namespace, "task_list": task_list}
    return {(namespace, key) for (key,) in connection.execute(_SQL["list_waiting_keys"], values)}


def set_limit(connection: apsw.Connection, namespace: str, key: str, max_running: int | None) -> set[int]:
    """Set an operator's limit of a key, in bounded transactions; return the lanes in which tasks became ready."""
    values = _of(namespace, key, max_running=max_running, most=BATCH)
    name = key.removeprefix(HANDLER_KEY) if key.startswith(HANDLER_KEY) else None
    with writing(connection):
        connection.execute(_SQL["drop_limit" if max_running is None else "set_limit"], values)
        if name is not None:
            given = None if max_running is None else handler_key(name)
            connection.execute(_SQL["mark_lanes"], {"namespace": namespace, "name": name, "limit_key": given})
    ready: set[int] = set()
    changed = BATCH
    while changed >= BATCH:
        with writing(connection):
            changed = 0
            if max_running is not None:
                if name is not None:
                    connection.execute(_SQL["adopt"], values | {"name": name})
                    changed = connection.changes()
                connection.execute(_SQL["recall"], values)
                changed = max(changed, connection.changes())
            before = connection.total_changes()
            ready |= admit(connection, [(namespace, key)])
            changed = max(changed, connection.total_changes() - before)
    return ready


def list_limits(connection: apsw.Connection, namespace: str) -> list[Limit]:
    """Return all limits of the namespace."""
    return [
        Limit(namespace=space, key=key, max_running=max_running, by_operator=bool(by_operator), admitted=admitted, waiting=waiting)
        for space, key, max_running, by_operator, admitted, waiting in connection.execute(
            _SQL["list_limits"], {"namespace": namespace}
        )
    ]


def list_admitted(connection: apsw.Connection, namespace: str, key: str, limit: int) -> list[str]:
    """Return the ids of admitted tasks of the key."""
    return [str(task_id) for (task_id,) in connection.execute(_SQL["list_admitted"], _of(namespace, key, limit=max(limit, 0)))]


def _of(namespace: str, key: str, **more: Any) -> dict[str, Any]:
    return {"namespace": namespace, "key": key, **more}
