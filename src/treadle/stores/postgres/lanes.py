"""Lanes: their ids, and the settings that inserts check."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from treadle.model.lists import LaneRule
from treadle.model.names import Lane
from treadle.stores.postgres.connection.connect import Connection
from treadle.stores.rules.inserts import Entered, GuardedLane, capped_lanes, check_backlog
from treadle.stores.statements import load_statements

_SQL = load_statements(__package__, "lanes.sql")


async def list_lanes(connection: Connection) -> tuple[dict[int, Lane], set[int]]:
    """Return all lanes by id, and the ids of those that are paused or have a rate."""
    rows = await connection.fetch(_SQL["list_lanes"])
    return {row[0]: Lane(*row[1:5]) for row in rows}, {row[0] for row in rows if row[5]}


async def insert_lanes(connection: Connection, lanes: Collection[Lane]) -> None:
    """Create missing lanes with the settings of their list."""
    async with connection.transaction():
        await lock_lists(connection)
        await connection.execute(_SQL["insert_lanes"], *zip(*sorted(lanes), strict=True))


async def lock_lists(connection: Connection) -> None:
    """Let one transaction at a time change settings of lists or create lanes."""
    await connection.execute(_SQL["lock_lists"])


async def list_rules(connection: Connection) -> list[LaneRule]:
    """Return all lanes with their settings."""
    rows = [dict(row) for row in await connection.fetch(_SQL["list_lane_rules"])]
    names = ("namespace", "kind", "task_list", "name")
    return [LaneRule(lane_id=row.pop("id"), lane=Lane(*(row.pop(name) for name in names)), **row) for row in rows]


async def next_token_for(connection: Connection, lane_ids: Collection[int]) -> int | None:
    """Return the milliseconds until a token arrives for a lane with ready tasks; None if no such lane has a rate."""
    found = await connection.fetchval(_SQL["next_token_for"], list(lane_ids))
    return None if found is None else int(found)


async def lock_guarded(connection: Connection, lane_ids: Collection[int]) -> dict[int, GuardedLane]:
    """Lock and return those of the lanes that have settings which an insert must obey."""
    return {row[0]: GuardedLane(*row) for row in await connection.fetch(_SQL["lock_guarded"], sorted(lane_ids))}


async def check_entrance(connection: Connection, entered: Iterable[Entered]) -> None:
    """Raise `ListDraining` or `BacklogFull` if a lane refuses the tasks that were just inserted into it."""
    for lane_id, cap, lane in capped_lanes(entered):
        check_backlog(lane, cap, await connection.fetchval(_SQL["count_backlog"], lane_id, cap + 1))
