"""Lanes: their ids, and the settings that claims and inserts check."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import apsw

from treadle.model.lists import LaneRule
from treadle.model.names import Lane
from treadle.stores.rules.inserts import Entered, GuardedLane, capped_lanes, check_backlog
from treadle.stores.sqlite.connection.connect import read_value, to_json
from treadle.stores.statements import load_statements

_SQL = load_statements(__package__, "lanes.sql")


def list_lanes(connection: apsw.Connection) -> dict[int, Lane]:
    """Return all lanes by id."""
    return {lane_id: Lane(*names) for lane_id, *names in connection.execute(_SQL["list_lanes"])}


def make_lanes(connection: apsw.Connection, lanes: Iterable[Lane]) -> dict[Lane, int]:
    """Create missing lanes inside the caller's transaction; return the ids of all lanes."""
    rows = to_json(sorted(lanes))  # sorted, so that the ids do not depend on the order of a set
    connection.execute(_SQL["insert_lanes"], {"rows": rows})
    connection.execute(_SQL["key_lanes"])
    return {lane: lane_id for lane_id, lane in list_lanes(connection).items()}


def list_rules(connection: apsw.Connection) -> list[LaneRule]:
    """Return all lanes with their settings."""
    return list(_rules(connection, "list_lane_rules"))


def list_slowed(connection: apsw.Connection) -> dict[int, LaneRule]:
    """Return the lanes that are paused or have a rate; usually there are none, and the query is nearly free."""
    return {rule.lane_id: rule for rule in _rules(connection, "list_slowed")}


def list_rated_lanes(connection: apsw.Connection, lane_ids: Sequence[int]) -> list[LaneRule]:
    """Return those of the lanes that have a rate and ready tasks, and are not paused."""
    return list(_rules(connection, "list_rated_lanes", {"lane_ids": to_json(list(lane_ids))}))


def _rules(connection: apsw.Connection, name: str, values: dict[str, Any] | None = None) -> Iterator[LaneRule]:
    for lane_id, namespace, kind, task_list, lane_name, paused, accepting, *rest in connection.execute(_SQL[name], values):
        rate, burst, tokens, tokens_at, backlog_limit, limit_key = rest
        yield LaneRule(
            lane_id=lane_id,
            lane=Lane(namespace, kind, task_list, lane_name),
            paused=bool(paused),
            accepting=bool(accepting),
            rate=rate,
            burst=burst,
            tokens=tokens,
            tokens_at=tokens_at,
            backlog_limit=backlog_limit,
            limit_key=limit_key,
        )


def spend(connection: apsw.Connection, lane_id: int, tokens: float, now: int) -> None:
    """Store the number of tokens that the lane has left."""
    if tokens < math.inf:
        connection.execute(_SQL["spend"], {"lane_id": lane_id, "tokens": tokens, "now": now})


def list_guarded(connection: apsw.Connection) -> dict[int, GuardedLane]:
    """Return the lanes with settings that an insert must obey."""
    return {
        lane_id: GuardedLane(lane_id, bool(accepting), backlog_limit, limit_key)
        for lane_id, accepting, backlog_limit, limit_key in connection.execute(_SQL["list_guarded"])
    }


def check_entrance(connection: apsw.Connection, entered: Iterable[Entered]) -> None:
    """Raise `ListDraining` or `BacklogFull` if a lane refuses the tasks that were just inserted into it."""
    for lane_id, cap, lane in capped_lanes(entered):
        check_backlog(lane, cap, read_value(connection, _SQL["count_backlog"], {"lane_id": lane_id, "most": cap + 1}))
