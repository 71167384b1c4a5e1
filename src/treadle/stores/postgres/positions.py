"""The positions in lanes at which claims ended: they keep claims cheap while another session holds an old snapshot.

PostgreSQL cannot remove the index entries of claimed tasks while a snapshot may still see them, so every claim would scan
all entries claimed since. While such a snapshot exists, claims start where the last claim of this process ended, and
start from the front only now and then. A task that became ready before that position (a better priority, an older task)
is then claimed up to a second late. Without an old snapshot, claims start from the front and the order is exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter

from treadle.model.clock import Clock
from treadle.model.tasks import Task
from treadle.stores.postgres.connection.connect import Connection
from treadle.stores.statements import load_statements

_IS_SNAPSHOT_OLD = load_statements(__package__, "tasks.sql")["is_snapshot_old"]

CHECK_EVERY = 5.0
"""Seconds between checks for old snapshots, while tasks are claimed."""

FRONT_EVERY = 1.0
"""Seconds between claims from the front, while there is an old snapshot."""

Position = tuple[int, int]
"""A priority and a due time."""

_FRONT: Position = (-(2**31), 0)
_due_at = attrgetter("due_at")


class Positions:
    """The positions of one process."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._positions: dict[int, Position] = {}
        self._held_open = False
        self._took = False
        """Whether a task was claimed since the last check for old snapshots: otherwise there is nothing to skip."""
        self._checked_at = float("-inf")
        self._front_at = float("-inf")

    async def after(self, connection: Connection, lane_ids: Sequence[int]) -> list[Position] | None:
        """Return the position to start from in each lane, or None for the front of all."""
        now = self._clock.monotonic()
        if not self._positions:
            return None
        if self._took and now - self._checked_at >= CHECK_EVERY:
            self._checked_at, self._took = now, False
            self._held_open = bool(await connection.fetchval(_IS_SNAPSHOT_OLD))
        if not self._held_open or now - self._front_at >= FRONT_EVERY:
            self._front_at = now
            return None
        return [self._positions.get(lane_id, _FRONT) for lane_id in lane_ids]

    def took(self, tasks: Sequence[Task]) -> None:
        """Remember the position at which this claim ended."""
        if tasks:
            self._took = True
            last = max(tasks, key=_due_at)
            self._positions[last.lane_id] = (last.priority, last.due_at)
