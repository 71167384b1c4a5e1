"""Taking work and waking it: one statement each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from treadle.kernel.ports import Woken
from treadle.model.names import Lane
from treadle.model.tasks import Task
from treadle.stores.postgres.connect import PACKAGE, Connection
from treadle.stores.statements import load_statements

_SQL = load_statements(PACKAGE, "queue.sql")

LOCKED_FOR = 1000
"""Milliseconds after which to look again at due tasks that others held locked; they are most likely waking them."""


async def claim(
    connection: Connection, lanes: Mapping[int, Lane], lane_ids: Sequence[int], owner_id: str, lease_for: int, limit: int
) -> list[Task]:
    """Up to `limit` ready tasks of the best of the lanes, now owned; in the order in which they are due."""
    rows = await connection.fetch(_SQL["claim"], lane_ids, owner_id, lease_for, limit)
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


async def wake(connection: Connection, limit: int, *, expire_leases: bool) -> Woken:
    """Make up to `limit` tasks ready whose time has come, and tell when the next one's will."""
    row = await connection.fetchrow(_SQL["wake"], limit, expire_leases)
    assert row is not None
    count, expired, lane_ids, due, next_for, now, overdue = row
    if due > count:
        next_for = 0 if count == limit else min(next_for or LOCKED_FOR, LOCKED_FOR)
    return Woken(count, expired, tuple(lane_ids), next_for, now, overdue)


async def now(connection: Connection) -> int:
    """The database's clock."""
    return int(await connection.fetchval(_SQL["now"]))


async def list_lanes(connection: Connection) -> dict[int, Lane]:
    """All lanes that there are."""
    rows = await connection.fetch(_SQL["list_lanes"])
    return {lane_id: Lane(namespace, kind, task_list, name) for lane_id, namespace, kind, task_list, name in rows}


async def insert_lanes(connection: Connection, lanes: Sequence[Lane]) -> None:
    """Make the lanes that are missing; in one order, so that two who do it never wait for one another."""
    await connection.execute(_SQL["insert_lanes"], *zip(*sorted(lanes), strict=True))
