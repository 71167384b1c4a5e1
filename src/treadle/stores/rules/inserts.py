"""New tasks: their values, which of them are ready, preclaimed ones, and the lanes that refuse them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any, NamedTuple, Protocol

import msgspec

from treadle.kernel.store.units import Answer, Unit, Verdict
from treadle.model.errors import BacklogFull, ListDraining
from treadle.model.names import Lane
from treadle.model.tasks import NewTask
from treadle.stores.statements import COLUMN_SETS

Preclaim = tuple[str, str, int]
"""The id of a new task, its owner, and the milliseconds of its lease."""

_REST = attrgetter(*(column.name for column in COLUMN_SETS["given"][3:]))
"""The values of a new task after its id and lane, in the order of the set `given`."""

_HOLD = [column.name for column in COLUMN_SETS["given"]].index("hold")


def values_of(task: NewTask, lane_id: int) -> list[Any]:
    """Return the values of a new task in the order of the set `given`; a task with a limit key waits to be admitted."""
    values = [task.id, lane_id, task.lane.namespace, *_REST(task)]
    if task.limit_key is not None:
        values[_HOLD] |= 1
    return values


class GuardedLane(NamedTuple):
    """A lane with settings that an insert must obey."""

    lane_id: int
    accepting: bool
    backlog_limit: int | None
    limit_key: str | None


Entered = tuple[GuardedLane, Lane, bool]
"""A guarded lane that an entrance has put a task into, its names, and whether the task is ready."""


def with_lane_key(task: NewTask, lane: GuardedLane | None) -> NewTask:
    """Return the task with the limit key of its lane, if it has none of its own."""
    if lane is None or lane.limit_key is None or task.limit_key is not None:
        return task
    return msgspec.structs.replace(task, limit_key=lane.limit_key)


def is_entrance(unit: Unit) -> bool:
    """Whether a lane may refuse the unit's tasks: not those of a unit with a guard, which settles or advances something."""
    return unit.guard is None and unit.run is None


def is_ready(task: NewTask) -> bool:
    """Whether a worker may claim the task as soon as it is stored."""
    return task.delay <= 0 and not task.hold and task.limit_key is None


def capped_lanes(entered: Iterable[Entered]) -> list[tuple[int, int, Lane]]:
    """Return the lanes with a cap on ready tasks, and their caps; raise `ListDraining` for a lane that is draining."""
    capped = []
    for guarded, lane, ready in sorted(set(entered)):
        if not guarded.accepting:
            raise ListDraining(lane.task_list)
        if ready and guarded.backlog_limit is not None:
            capped.append((guarded.lane_id, guarded.backlog_limit, lane))
    return capped


def check_backlog(lane: Lane, cap: int, count: int) -> None:
    """Raise `BacklogFull` if the lane has more ready tasks than its cap allows."""
    if count > cap:
        raise BacklogFull(lane.task_list, lane.name, cap)


class NewTasks(Protocol):
    """The tasks that a commit inserted."""

    @property
    def ids(self) -> Collection[str]:
        """The ids of new tasks."""

    @property
    def holders(self) -> Mapping[str, str]:
        """The live task that has the unique key, by the id of each task with a taken one."""


def note_inserted(answer: Answer, tasks: Iterable[NewTask], inserted: NewTasks, lane_ids: Mapping[Lane, int]) -> Answer:
    """Add to the answer the lanes in which new tasks are ready, and the live tasks that have the unique keys of refused ones."""
    ready, existing = set(answer.lane_ids), {}
    for task in tasks:
        if task.id in inserted.ids:
            if is_ready(task):
                ready.add(lane_ids[task.lane])
        elif task.unique_key is not None and task.id in inserted.holders:
            existing[task.unique_key] = inserted.holders[task.id]
    if not existing and len(ready) == len(answer.lane_ids):
        return answer
    return msgspec.structs.replace(answer, existing=existing, lane_ids=tuple(sorted(ready)))


def has_preclaims(units: Sequence[Unit]) -> bool:
    """Whether a task of the units is to be claimed for its creator."""
    return any(task.preclaimed is not None for unit in units for task in unit.tasks)


def list_preclaims(units: Sequence[Unit], answers: Sequence[Answer]) -> list[Preclaim]:
    """Return the tasks of applied units that are to be claimed for their creators."""
    return [
        (task.id, task.preclaimed.owner_id, task.preclaimed.lease_for)
        for unit, answer in zip(units, answers, strict=True)
        if answer.verdict is Verdict.DONE
        for task in unit.tasks
        if task.preclaimed is not None
    ]
