"""What becomes of tasks, each kind one statement for many: ended, parked, kept with a new checkpoint, revived."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from treadle.kernel.store.units import Amend, Finish, Keep, Park, Revive
from treadle.stores.postgres.connect import PACKAGE, Connection, plain, row_count, sparse, words
from treadle.stores.postgres.limits import Key
from treadle.stores.statements import load_statements

_SQL = load_statements(PACKAGE, "settlements.sql")


class End(NamedTuple):
    """A task that ends, if its claim is still this one."""

    task_id: str
    claim_version: int
    owner_id: str | None
    actor: str | None
    finish: Finish


class Parking(NamedTuple):
    """A locked task that lives on without an owner."""

    task_id: str
    from_state: str
    actor: str | None
    park: Park


async def finish(connection: Connection, ends: Sequence[End], *, limited: bool = True) -> int:
    """Move those tasks to the finished ones whose claim is as given; how many that were.

    Unless `limited`, those with a limit key are left alone: the next of their key has to be admitted in the same transaction.
    """
    ends = sorted(ends)
    status = await connection.execute(
        _SQL["finish"],
        plain([end[0] for end in ends]),
        plain([end[1] for end in ends]),
        words([end[2] for end in ends]),
        words([end[3] for end in ends]),
        words([end[4].move for end in ends]),
        words([end[4].state for end in ends]),
        sparse([end[4].result for end in ends]),
        sparse([end[4].error for end in ends]),
        sparse([end[4].error_code for end in ends]),
        sparse([end[4].fingerprint for end in ends]),
        limited,
    )
    return row_count(status)


async def bury(connection: Connection, task_ids: Sequence[str]) -> None:
    """Remove those of the live tasks that have ended already; they cannot end twice."""
    await connection.execute(_SQL["bury"], sorted(task_ids))


async def park(connection: Connection, parkings: Sequence[Parking]) -> None:
    """Give locked tasks their new values and log the move."""
    parks = [parking.park for parking in parkings]
    await connection.execute(
        _SQL["park"],
        [parking.task_id for parking in parkings],
        [parking.from_state for parking in parkings],
        [parking.actor for parking in parkings],
        [park.move for park in parks],
        [park.state for park in parks],
        [park.attempt for park in parks],
        [park.failures for park in parks],
        [park.takeovers for park in parks],
        [park.hold for park in parks],
        sparse([park.delay for park in parks]),
        sparse([park.checkpoint for park in parks]),
        sparse([park.error for park in parks]),
        sparse([park.data for park in parks]),
        [park.quiet for park in parks],
    )


async def keep(connection: Connection, keeps: dict[str, Keep]) -> None:
    """Store the checkpoints of locked tasks, by id, and log the moves that there are."""
    checkpoints, moves = [kept.checkpoint for kept in keeps.values()], [kept.move for kept in keeps.values()]
    if moves.count(None) == len(moves):
        await connection.execute(_SQL["keep"], list(keeps), checkpoints)
    else:
        await connection.execute(_SQL["keep_and_log"], list(keeps), checkpoints, moves, [kept.data for kept in keeps.values()])


async def revive(connection: Connection, revivals: dict[str, Revive]) -> dict[str, Key]:
    """Make locked finished tasks live again, by id; the limit keys of those that have one."""
    rows = await connection.fetch(
        _SQL["revive"],
        list(revivals),
        [revival.move for revival in revivals.values()],
        [revival.actor for revival in revivals.values()],
        [revival.payload for revival in revivals.values()],
        [revival.failures for revival in revivals.values()],
        [revival.delay for revival in revivals.values()],
    )
    return {task_id: (namespace, key) for task_id, namespace, key in rows if key is not None}


async def amend(connection: Connection, amends: dict[str, Amend]) -> None:
    """Give locked finished tasks another end, by id."""
    await connection.execute(
        _SQL["amend"],
        list(amends),
        [amendment.move for amendment in amends.values()],
        [amendment.state for amendment in amends.values()],
        [amendment.actor for amendment in amends.values()],
    )
