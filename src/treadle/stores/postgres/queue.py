"""Taking work and waking it: one statement each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from treadle.kernel.store.queries import Woken
from treadle.model.names import Lane
from treadle.model.tasks import Task
from treadle.stores.postgres.connect import PACKAGE, Connection
from treadle.stores.postgres.limits import Key, feed
from treadle.stores.statements import load_statements

_SQL = load_statements(PACKAGE, "queue.sql")
_decode_keys = msgspec.json.Decoder(list[tuple[str, str]]).decode

LOCKED_FOR = 1000
"""Milliseconds after which to look again at due tasks that others held locked; they are most likely waking them."""


async def claim(
    connection: Connection,
    lanes: Mapping[int, Lane],
    lane_ids: Sequence[int],
    owner_id: str,
    lease_for: int,
    limit: int,
    *,
    slowed: bool,
    after: Sequence[tuple[int, int]] | None = None,
) -> list[Task]:
    """Up to `limit` ready tasks of the best of the lanes, now owned; in the order in which they are due.

    Lanes with a rate are looked at only if `slowed`. `after` are places in the lanes to begin at; from the front if there is
    nothing after them.
    """
    rows = []
    if after is not None and not slowed:
        places = [place[0] for place in after], [place[1] for place in after]
        rows = await connection.fetch(_SQL["claim_after"], lane_ids, owner_id, lease_for, limit, *places)
    if not rows:
        rows = await connection.fetch(_SQL["claim_slowed" if slowed else "claim"], lane_ids, owner_id, lease_for, limit)
    if not rows:
        return []
    namespace, kind, task_list, name = lanes[rows[0][1]]
    return [
        Task(
            id=task_id,
            lane_id=lane_id,
            namespace=namespace,
            kind=kind,
            task_list=task_list,
            name=name,
            priority=priority,
            state=state,
            due_at=due_at,
            wake_at=wake_at,
            owner_id=owner_id,
            claim_version=claim_version,
            claimed_at=claimed_at,
            heartbeat_at=claimed_at,
            attempt=attempt,
            failures=failures,
            takeovers=takeovers,
            version=version,
            created_at=created_at,
            deadline_at=deadline_at,
            timeout_for=timeout_for,
            progress_for=progress_for,
            progress_at=claimed_at,
            progress=progress,
            run_id=run_id,
            step_id=step_id,
            flow_id=flow_id,
            scope=scope,
            root_id=root_id or task_id,
            trace_id=trace_id,
            limit_key=limit_key,
            unique_key=unique_key,
            policy=policy,
            payload=payload,
            checkpoint=checkpoint,
            error=error,
        )
        for (
            task_id,
            lane_id,
            priority,
            state,
            due_at,
            wake_at,
            claim_version,
            claimed_at,
            attempt,
            failures,
            takeovers,
            version,
            created_at,
            deadline_at,
            timeout_for,
            progress_for,
            progress,
            run_id,
            step_id,
            flow_id,
            scope,
            root_id,
            trace_id,
            limit_key,
            unique_key,
            policy,
            payload,
            checkpoint,
            error,
        ) in rows
    ]


async def wake(connection: Connection, limit: int, *, expire_leases: bool, fed: Key) -> tuple[Woken, Key]:
    """Make up to `limit` tasks ready whose time has come, and tell when the next one's will.

    Then the next tasks are admitted of those limit keys that were woken, and of some keys after `fed`, the last one of which
    is returned: whatever else should have admitted them, none waits for long while there is room.
    """
    row = await connection.fetchrow(_SQL["wake"], limit, expire_leases)
    assert row is not None
    count, expired, lane_ids, due, next_for, now, overdue, keys, waiting = row
    if keys or waiting:
        admitted, fed = await feed(connection, _decode_keys(keys) if keys else [], fed)
        lane_ids = admitted.union(lane_ids)
    if due > count:
        next_for = 0 if count == limit else min(next_for or LOCKED_FOR, LOCKED_FOR)
    return Woken(count, expired, tuple(lane_ids), next_for, now, overdue), fed


async def now(connection: Connection) -> int:
    """The database's clock."""
    return int(await connection.fetchval(_SQL["now"]))


async def list_lanes(connection: Connection) -> tuple[dict[int, Lane], set[int]]:
    """All lanes that there are, and the ids of those that are paused or have a rate."""
    rows = await connection.fetch(_SQL["list_lanes"])
    return {row[0]: Lane(*row[1:5]) for row in rows}, {row[0] for row in rows if row[5]}
