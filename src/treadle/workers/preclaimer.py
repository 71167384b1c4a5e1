"""The preclaimer: claims the tasks that follow from a worker's own work with the commit that inserts them.

So the next step of a run needs no claim and starts one round trip sooner. The store preclaims a task only if nothing waits that a
claim of this worker would take before it, or if this worker has room for everything that waits. Room is reserved before the commit;
a new task takes the room of a task that the same commit settles.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from operator import itemgetter

import msgspec

from treadle.kernel.store.committer import OnPreclaimed
from treadle.kernel.store.crashpoints import reach
from treadle.kernel.store.units import Answer, CancelRunTasks, Finish, HoldRun, LimitTask, Park, Unit
from treadle.kernel.telemetry.events import StoreTrouble
from treadle.kernel.telemetry.observer import TasksClaimed
from treadle.model.errors import StoreError
from treadle.model.states import TaskState
from treadle.model.tasks import Claim, NewTask, Preclaimed, Task
from treadle.workers.attempt import Attempt
from treadle.workers.claimer import Claimer, LaneGroup, Start
from treadle.workers.dependencies import Resources, WorkerOptions

_CHANGES = frozenset({CancelRunTasks, HoldRun, LimitTask})
"""Rows that may change the tasks that their own unit inserts."""


class Preclaimer:
    """Preclaims tasks for one worker. Calls `on_answered` after the answer to each unit with preclaimed tasks."""

    def __init__(
        self,
        resources: Resources,
        options: WorkerOptions,
        claimer: Claimer,
        attempts: Mapping[str, Attempt],
        start: Start,
        on_answered: Callable[[], None],
    ) -> None:
        self._resources = resources
        self._options = options
        self._claimer = claimer
        self._attempts = attempts
        self._start = start
        self._on_answered = on_answered
        self._closed = False
        self._checks: set[asyncio.Task[None]] = set()
        self.reserved: dict[str, LaneGroup] = {}
        """Tasks that the store may have claimed for this worker, and the groups in which they have room."""

    def is_own(self, task_id: str) -> bool:
        """Whether the task is in progress here, or its preclaim is."""
        return task_id in self._attempts or task_id in self.reserved

    def close(self) -> None:
        """Start nothing any more: the leases of tasks that the store claims for this worker from now on expire."""
        self._closed = True
        for check in self._checks:
            check.cancel()

    def preclaim(self, units: Sequence[Unit]) -> dict[int, tuple[Unit, OnPreclaimed]]:
        """Reserve room for new tasks of the units; return the units with preclaimed tasks, by position."""
        claimer = self._claimer
        if claimer.stopped:
            return {}
        ending = self._list_ending(units)
        for attempt in ending:
            claimer.vacate(attempt.group)
        chosen = self._choose(units, len(ending) + claimer.reach)
        new = Counter(self.reserved[task_id] for task_ids in chosen.values() for task_id in task_ids)
        room = min(map(claimer.room_for_waiting, new), default=0)
        for attempt in ending:
            attempt.replaced = new[attempt.group] > 0
            if attempt.replaced:
                new[attempt.group] -= 1
            else:
                claimer.occupy(attempt.group)
        if not chosen:
            return {}
        sent_at = self._resources.clock.monotonic()
        preclaimed = Preclaimed(self._resources.owner_id, self._options.lease_for, claimer.list_lanes(), room)
        found: dict[int, tuple[Unit, OnPreclaimed]] = {}
        for position, task_ids in chosen.items():
            tasks = [
                msgspec.structs.replace(task, preclaimed=preclaimed) if task.id in task_ids else task
                for task in units[position].tasks
            ]
            unit = msgspec.structs.replace(units[position], tasks=tuple(tasks))
            found[position] = (unit, self._on_preclaimed(task_ids, sent_at))
        return found

    def _list_ending(self, units: Sequence[Unit]) -> list[Attempt]:
        """Return the attempts at tasks that the units settle, unless another task has their room already."""
        settled = [
            claim.task_id
            for unit in units
            if isinstance(unit.settlement, Finish) or (isinstance(unit.settlement, Park) and not unit.settlement.stays)
            for claim in (unit.guard, *(claim for claim, _ in unit.also))
            if claim is not None
        ]
        found = [self._attempts.get(task_id) for task_id in dict.fromkeys(settled)]
        return [attempt for attempt in found if attempt is not None and not attempt.replaced]

    def _choose(self, units: Sequence[Unit], limit: int) -> dict[int, set[str]]:
        """Reserve room for the first tasks by priority; return their ids by the position of the unit."""
        candidates = [
            (task.priority, position, task)
            for position, unit in enumerate(units)
            if not any(type(row) in _CHANGES for row in unit.rows)
            for task in unit.tasks
            if _is_plain(task)
        ]
        candidates.sort(key=itemgetter(0))
        chosen: dict[int, set[str]] = {}
        for _, position, task in candidates[:limit]:
            if (group := self._claimer.reserve(task.lane)) is not None:
                self.reserved[task.id] = group
                chosen.setdefault(position, set()).add(task.id)
        return chosen

    def _on_preclaimed(self, task_ids: Collection[str], sent_at: float) -> OnPreclaimed:
        def answered(answer: Answer | BaseException, again: bool) -> None:
            reach("preclaim.after")
            claimed = answer.claimed if isinstance(answer, Answer) else ()
            self._begin(claimed, sent_at)
            unknown = [task_id for task_id in task_ids if task_id in self.reserved]
            if again and unknown and not self._closed:
                check = asyncio.get_running_loop().create_task(self._check(unknown, sent_at))
                self._checks.add(check)
                check.add_done_callback(self._checks.discard)
            else:
                self._release(unknown)

        return answered

    async def _check(self, task_ids: Sequence[str], sent_at: float) -> None:
        """Start those of the tasks that an earlier commit of a repeated unit has claimed; in case of doubt, the lease expires."""
        try:
            found = await self._resources.store.find_tasks(task_ids)
            own = [task for task in found if task.claim == Claim(task.id, 1, self._resources.owner_id)]
            self._begin([task for task in own if not task.finished and task.state == TaskState.PENDING], sent_at)
        except StoreError as error:
            self._resources.emit(StoreTrouble("reading preclaimed tasks", str(error), 0.0))
        finally:
            self._release(task_ids)

    def _begin(self, tasks: Sequence[Task], sent_at: float) -> None:
        """Start the tasks in the room that was reserved for them."""
        if not tasks or self._closed:
            return
        groups: dict[LaneGroup, list[Task]] = {}
        for task in tasks:
            group = self.reserved.pop(task.id)
            self._claimer.vacate(group)
            groups.setdefault(group, []).append(task)
        if (observe := self._resources.telemetry.observe) is not None:
            observe(TasksClaimed(list(tasks)))
        for group, started in groups.items():
            self._start(started, group, sent_at)
        self._on_answered()

    def _release(self, task_ids: Iterable[str]) -> None:
        """Return the room of tasks that are not claimed."""
        for task_id in task_ids:
            if (group := self.reserved.pop(task_id, None)) is not None:
                self._claimer.vacate(group)
        self._on_answered()


def _is_plain(task: NewTask) -> bool:
    """Whether only its priority decides when the task is claimed, as far as this process knows."""
    return not (task.delay > 0 or task.hold or task.limit_key or task.fairness_key or task.preclaimed)
