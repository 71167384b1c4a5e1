"""Where in each lane the last claim ended: how claims stay cheap while somebody holds an old snapshot open.

PostgreSQL cannot drop the index entries of taken tasks while a snapshot may still see them, so every claim would walk over
all that was taken since. While there is such a snapshot, claims begin where the last one of this process ended, and look
from the front only now and then. What became ready before that place (a better priority, an older task) is taken up to a
second late then; without an old snapshot nothing of this happens, and the order is exact.
"""

from __future__ import annotations

from collections.abc import Sequence

from treadle.model.clock import Clock
from treadle.model.tasks import Task
from treadle.stores.postgres.connect import PACKAGE, Connection
from treadle.stores.statements import load_statements

_SQL = load_statements(PACKAGE, "queue.sql")

CHECK_EVERY = 5.0
"""Seconds between looks for old snapshots, while tasks are taken."""

LOOK_EVERY = 1.0
"""Seconds between claims from the front, while there is one."""

Place = tuple[int, int]
"""A priority and a due time."""

_FRONT: Place = (-(2**31), 0)


class Places:
    """The places of one process."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._places: dict[int, Place] = {}
        self._held_open = False
        self._took = False
        """Whether anything was taken since the last look for old snapshots: else there is nothing to walk over."""
        self._checked_at = float("-inf")
        self._looked_at = float("-inf")

    async def after(self, connection: Connection, lane_ids: Sequence[int]) -> list[Place] | None:
        """Where to begin in each of the lanes, or None for the front of all."""
        now = self._clock.monotonic()
        if not self._places:
            return None
        if self._took and now - self._checked_at >= CHECK_EVERY:
            self._checked_at, self._took = now, False
            self._held_open = bool(await connection.fetchval(_SQL["is_snapshot_old"]))
        if not self._held_open or now - self._looked_at >= LOOK_EVERY:
            self._looked_at = now
            return None
        return [self._places.get(lane_id, _FRONT) for lane_id in lane_ids]

    def took(self, tasks: Sequence[Task]) -> None:
        """Remember where this claim ended."""
        if tasks:
            self._took = True
            last = max(tasks, key=lambda task: task.due_at)
            self._places[last.lane_id] = (last.priority, last.due_at)
