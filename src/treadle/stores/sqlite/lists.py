"""Task lists and lanes: what operators said about them, and the checks that follow for claims and inserts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import apsw
import msgspec

from treadle.model.clock import Clock
from treadle.model.errors import BacklogFull, ListDraining
from treadle.model.lists import LaneRule, TaskList
from treadle.model.names import Lane
from treadle.stores.sqlite import limits
from treadle.stores.sqlite.connection import read_value, writing
from treadle.stores.statements import load_statements

_SQL = load_statements(__package__, "lists.sql")


class Guarded(NamedTuple):
    """What an insert has to know of a lane."""

    lane_id: int
    accepting: bool
    backlog_limit: int | None
    limit_key: str | None


def list_lists(connection: apsw.Connection) -> list[TaskList]:
    """The lists that something was said about."""
    return [
        TaskList(
            namespace=namespace,
            task_list=task_list,
            paused=bool(paused),
            accepting=bool(accepting),
            no_handler=no_handler,
            keep_completed_for=completed_for,
            keep_failed_for=failed_for,
        )
        for namespace, task_list, paused, accepting, no_handler, completed_for, failed_for in connection.execute(_SQL["list_lists"])
    ]


def set_list(connection: apsw.Connection, namespace: str, task_list: str, **said: Any) -> tuple[int, ...]:
    """Change what is not None, for the list and all its lanes; these, and lanes where others may go on instead."""
    values = {"namespace": namespace, "task_list": task_list, **said}
    with writing(connection):
        connection.execute(_SQL["set_list"], values)
        lanes = {lane_id for (lane_id,) in connection.execute(_SQL["mark_lanes"], values)}
        if said["paused"] is not None:
            find = limits.recall_list if said["paused"] else limits.list_waiting_keys
            lanes |= limits.admit(connection, find(connection, namespace, task_list))
    return tuple(sorted(lanes))


def list_lane_rules(connection: apsw.Connection) -> list[LaneRule]:
    """All lanes and what was said about them."""
    return [_rule(row) for row in connection.execute(_SQL["list_lane_rules"])]


def set_rate(connection: apsw.Connection, clock: Clock, lane_id: int, rate: float | None, burst: int | None) -> None:
    """A lane's rate."""
    with writing(connection):
        connection.execute(_SQL["set_rate"], {"lane_id": lane_id, "rate": rate, "burst": burst, "now": clock.now()})


def set_backlog_limit(connection: apsw.Connection, lane_id: int, backlog_limit: int | None) -> None:
    """A lane's cap."""
    with writing(connection):
        connection.execute(_SQL["set_backlog_limit"], {"lane_id": lane_id, "backlog_limit": backlog_limit})


# --- rates ---


def list_slowed(connection: apsw.Connection) -> dict[int, LaneRule]:
    """Lanes that are paused or have a rate; most often there is none, and that costs next to nothing."""
    return {rule.lane_id: rule for rule in map(_rule, connection.execute(_SQL["list_slowed"]))}


def spend(connection: apsw.Connection, lane_id: int, tokens: float, now: int) -> None:
    """Note how many tokens are left."""
    if tokens < math.inf:
        connection.execute(_SQL["spend"], {"lane_id": lane_id, "tokens": tokens, "now": now})


def next_token_for(connection: apsw.Connection, lane_ids: Sequence[int], now: int) -> int | None:
    """Milliseconds until a token comes for a lane that has ready tasks; None if no such lane has a rate."""
    found = connection.execute(_SQL["list_rated"], {"lane_ids": msgspec.json.encode(list(lane_ids)).decode()})
    return min((_rule(row).next_token_for(now) for row in found), default=None)


# --- inserts ---


def list_guarded(connection: apsw.Connection) -> dict[int, Guarded]:
    """Lanes that new tasks cannot simply be put into."""
    return {
        lane_id: Guarded(lane_id, bool(accepting), backlog_limit, limit_key)
        for lane_id, accepting, backlog_limit, limit_key in connection.execute(_SQL["list_guarded"])
    }


def check_entrance(connection: apsw.Connection, entered: Iterable[tuple[Guarded, Lane, bool]]) -> None:
    """Raise if a lane does not take what was just inserted into it: (lane, its names, whether it is ready)."""
    for guarded, lane, ready in set(entered):
        if not guarded.accepting:
            raise ListDraining(lane.task_list)
        cap = guarded.backlog_limit
        if ready and cap is not None:
            count = read_value(connection, _SQL["count_backlog"], {"lane_id": guarded.lane_id, "most": cap + 1})
            if count > cap:
                raise BacklogFull(lane.task_list, lane.name, cap)


def _rule(row: Sequence[Any]) -> LaneRule:
    lane_id, namespace, kind, task_list, name, paused, accepting, rate, burst, tokens, tokens_at, backlog_limit, limit_key = row
    return LaneRule(
        lane_id=lane_id,
        lane=Lane(namespace, kind, task_list, name),
        paused=bool(paused),
        accepting=bool(accepting),
        rate=rate,
        burst=burst,
        tokens=tokens,
        tokens_at=tokens_at,
        backlog_limit=backlog_limit,
        limit_key=limit_key,
    )
