"""Task lists and lanes: what operators said about them, and the checks that follow for inserts."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

from treadle.model.errors import BacklogFull, ListDraining
from treadle.model.lists import LaneRule, TaskList
from treadle.model.names import Lane
from treadle.stores.postgres import limits
from treadle.stores.postgres.connect import PACKAGE, Connection
from treadle.stores.statements import load_statements

_SQL = load_statements(PACKAGE, "lists.sql")
_QUEUE = load_statements(PACKAGE, "queue.sql")


class Guarded(NamedTuple):
    """What an insert has to know of a lane."""

    lane_id: int
    accepting: bool
    backlog_limit: int | None
    limit_key: str | None


async def list_lists(connection: Connection) -> list[TaskList]:
    """The lists that something was said about."""
    return [TaskList(**row) for row in await connection.fetch(_SQL["list_lists"])]


async def set_list(
    connection: Connection, namespace: str, task_list: str, paused: bool | None, accepting: bool | None, no_handler: str | None
) -> tuple[int, ...]:
    """Change what is not None, for the list and all its lanes; these, and lanes where others may go on instead."""
    async with connection.transaction():
        await connection.execute(_SQL["lock_lists"])
        await connection.execute(_SQL["set_list"], namespace, task_list, paused, accepting, no_handler)
        lanes = {row[0] for row in await connection.fetch(_SQL["mark_lanes"], namespace, task_list)}
        if paused is not None:
            find = limits.recall_list if paused else limits.list_waiting_keys
            if keys := await find(connection, namespace, task_list):
                lanes |= await limits.admit(connection, keys)
    return tuple(sorted(lanes))


async def list_lane_rules(connection: Connection) -> list[LaneRule]:
    """All lanes and what was said about them."""
    rows = await connection.fetch(_SQL["list_lane_rules"])
    return [
        LaneRule(
            lane_id=row[0],
            lane=Lane(*row[1:5]),
            paused=row[5],
            accepting=row[6],
            rate=row[7],
            burst=row[8],
            tokens=row[9],
            tokens_at=row[10],
            backlog_limit=row[11],
            limit_key=row[12],
        )
        for row in rows
    ]


async def insert_lanes(connection: Connection, lanes: Collection[Lane]) -> None:
    """Make the lanes that are missing, as their list says."""
    async with connection.transaction():
        await connection.execute(_SQL["lock_lists"])
        await connection.execute(_QUEUE["insert_lanes"], *zip(*sorted(lanes), strict=True))


async def set_rate(connection: Connection, lane_id: int, rate: float | None, burst: int | None) -> None:
    """A lane's rate."""
    await connection.execute(_SQL["set_rate"], lane_id, rate, burst)


async def set_backlog_limit(connection: Connection, lane_id: int, backlog_limit: int | None) -> None:
    """A lane's cap."""
    await connection.execute(_SQL["set_backlog_limit"], lane_id, backlog_limit)


async def next_token_for(connection: Connection, lane_ids: Collection[int]) -> int | None:
    """Milliseconds until a token comes for a lane that has ready tasks; None if no such lane has a rate."""
    found = await connection.fetchval(_SQL["next_token_for"], list(lane_ids))
    return None if found is None else int(found)


async def lock_guarded(connection: Connection, lane_ids: Collection[int]) -> dict[int, Guarded]:
    """Those of the lanes that new tasks cannot simply be put into, locked."""
    return {row[0]: Guarded(*row) for row in await connection.fetch(_SQL["lock_guarded"], sorted(lane_ids))}


async def check_entrance(connection: Connection, entered: Iterable[tuple[Guarded, Lane, bool]]) -> None:
    """Raise if a lane does not take what was just inserted into it: (lane, its names, whether it is ready)."""
    for guarded, lane, ready in sorted(set(entered)):
        if not guarded.accepting:
            raise ListDraining(lane.task_list)
        cap = guarded.backlog_limit
        if ready and cap is not None and await connection.fetchval(_SQL["count_backlog"], guarded.lane_id, cap + 1) > cap:
            raise BacklogFull(lane.task_list, lane.name, cap)
