"""Limits on claims: lanes with their rates and caps, limit keys with their slots and tokens, and turns of fairness keys."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import apsw

from treadle.model.lists import HANDLER_KEY, Limit
from treadle.model.names import Lane
from treadle.stores.sqlite.connection.connect import fetch_as, to_json, writing
from treadle.stores.statements import load_statements

_SQL = load_statements(__package__, "limits.sql")

Key = tuple[str, str]
"""A namespace and a limit key in it."""

BATCH = 10_000
"""The maximum number of tasks of one key that one transaction changes; later transactions change the rest."""


def admit(connection: apsw.Connection, keys: Iterable[Key], now: int) -> set[int]:
    """Admit as many tasks of each key as there is room for, inside the caller's transaction; return their lanes."""
    lanes: set[int] = set()
    for namespace, key in sorted(keys):
        lanes.update(lane_id for (lane_id,) in connection.execute(_SQL["admit"], _of(namespace, key, most=BATCH, now=now)))
    return lanes


def charge(connection: apsw.Connection, keys: Iterable[Key], now: int) -> None:
    """Take a token for each claimed task with one of the keys, inside the caller's transaction."""
    if rows := [(*key, count) for key, count in Counter(keys).items()]:
        connection.execute(_SQL["charge"], {"rows": to_json(rows), "now": now})


def fill(connection: apsw.Connection, limit: Limit, now: int) -> bool:
    """Store the tokens that a key has now; returns False if they have changed since the limit was read."""
    values = _of(limit.namespace, limit.key, now=now, seen_at=limit.tokens_at)
    connection.execute(_SQL["fill"], values)
    return bool(connection.changes())


def go_back(connection: apsw.Connection, stuck: Iterable[Limit], now: int) -> set[int]:
    """Let the unclaimed tasks of keys wait again, and admit those of the next lanes instead; return these lanes.

    Does nothing if there are no others, or if another process just did it. `admit` must follow.
    """
    lanes: set[int] = set()
    for limit in stuck:
        values = _of(limit.namespace, limit.key, now=now, most=BATCH)
        if fill(connection, limit, now):
            values["lane_ids"] = to_json([lane_id for (lane_id,) in connection.execute(_SQL["list_unclaimed_lanes"], values)])
            connection.execute(_SQL["go_back"], values)
            lanes.update(lane_id for (lane_id,) in connection.execute(_SQL["admit_others"], values))
    return lanes


def put_limits(connection: apsw.Connection, limits: Mapping[Key, int], now: int) -> None:
    """Store the limits that callers gave, inside the caller's transaction; `admit` must follow."""
    for (namespace, key), max_running in limits.items():
        if connection.execute(_SQL["put_limit"], _of(namespace, key, max_running=max_running)).fetchall():
            connection.execute(_SQL["recall"], _of(namespace, key, most=BATCH, now=now))


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


def set_limit(connection: apsw.Connection, namespace: str, key: str, max_running: int | None, now: int) -> set[int]:
    """Set an operator's maximum of a key, in bounded transactions; return the lanes in which tasks became ready."""
    values = _of(namespace, key, max_running=max_running)
    with writing(connection):
        if max_running is not None:
            connection.execute(_SQL["set_limit"], values)
        else:
            _drop(connection, "drop_max", values)
        _mark_lanes(connection, namespace, key)
    return apply_limit(connection, namespace, key, now)


def set_key_rate(
    connection: apsw.Connection, namespace: str, key: str, rate: float | None, burst: int | None, now: int
) -> set[int]:
    """Set the rate of a key, in bounded transactions; return the lanes in which tasks became ready."""
    values = _of(namespace, key, rate=rate, burst=burst, now=now)
    with writing(connection):
        if rate is not None:
            connection.execute(_SQL["set_key_rate"], values)
        else:
            _drop(connection, "drop_rate", values)
        _mark_lanes(connection, namespace, key)
    return apply_limit(connection, namespace, key, now)


def set_handler_key(connection: apsw.Connection, namespace: str, name: str, key: str | None, now: int) -> set[int]:
    """Set the key of a handler's tasks that have none, or remove it; return the lanes in which tasks became ready."""
    with writing(connection):
        values = {"namespace": namespace, "name": name, "key": key}
        connection.execute(_SQL["drop_handler_key" if key is None else "put_handler_key"], values)
        connection.execute(_SQL["mark_lanes"], values)
    return set() if key is None else apply_limit(connection, namespace, key, now, name)


def apply_limit(connection: apsw.Connection, namespace: str, key: str, now: int, name: str | None = None) -> set[int]:
    """Let a changed limit apply to existing tasks, those of the handler `name` included; return the lanes with ready tasks."""
    values = _of(namespace, key, most=BATCH, now=now)
    if name is None and key.startswith(HANDLER_KEY):
        name = key.removeprefix(HANDLER_KEY)
    ready: set[int] = set()
    changed = BATCH
    while changed >= BATCH:
        with writing(connection):
            changed = 0
            if name is not None:
                connection.execute(_SQL["adopt"], values | {"name": name})
                changed = connection.changes()
            connection.execute(_SQL["recall"], values)
            changed = max(changed, connection.changes())
            before = connection.total_changes()
            ready |= admit(connection, [(namespace, key)], now)
            changed = max(changed, connection.total_changes() - before)
    return ready


def _drop(connection: apsw.Connection, part: str, values: dict[str, Any]) -> None:
    """Remove one part of a limit; without the other part, the limit."""
    connection.execute(_SQL[part], values)
    if not connection.changes():
        connection.execute(_SQL["drop_limit"], values)


def _mark_lanes(connection: apsw.Connection, namespace: str, key: str) -> None:
    if key.startswith(HANDLER_KEY):
        connection.execute(_SQL["mark_lanes"], {"namespace": namespace, "name": key.removeprefix(HANDLER_KEY)})


def list_rated(connection: apsw.Connection) -> list[Limit]:
    """Return the limits with a rate that tasks wait for; usually there are none, and the query is nearly free."""
    return fetch_as(connection, Limit, _SQL["list_rated"], {})


def _of(namespace: str, key: str, **more: Any) -> dict[str, Any]:
    return {"namespace": namespace, "key": key, **more}


_LANES = load_statements(__package__, "lanes.sql")


def list_lanes(connection: apsw.Connection) -> dict[int, Lane]:
    """Return all lanes by id."""
    return {lane_id: Lane(*names) for lane_id, *names in connection.execute(_LANES["list_lanes"])}


def make_lanes(connection: apsw.Connection, lanes: Iterable[Lane]) -> dict[Lane, int]:
    """Create missing lanes inside the caller's transaction; return the ids of all lanes."""
    rows = to_json(sorted(lanes))  # sorted, so that the ids do not depend on the order of a set
    connection.execute(_LANES["insert_lanes"], {"rows": rows})
    connection.execute(_LANES["key_lanes"])
    return {lane: lane_id for lane_id, lane in list_lanes(connection).items()}


def spend(connection: apsw.Connection, lane_id: int, tokens: float, now: int) -> None:
    """Store the number of tokens that the lane has left."""
    if tokens < math.inf:
        connection.execute(_LANES["spend"], {"lane_id": lane_id, "tokens": tokens, "now": now})


_TAKE_TURNS = load_statements(__package__, "tasks.sql")["take_turns"]


def take_turns(connection: apsw.Connection, task_ids: Sequence[str]) -> None:
    """Give those of the tasks that have a fairness key and wait their turns, inside the caller's transaction."""
    if task_ids:
        connection.execute(_TAKE_TURNS, {"ids": to_json(list(task_ids))})
