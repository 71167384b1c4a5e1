"""Autoscaling signal: the number of workers a task list could use, from its depth, age and service times. Pure.

Ready tasks should start before the oldest has waited for the target latency. Starting `ready` tasks of duration `service`
within the remaining time needs `ready * service / left` slots; running tasks keep theirs. The remaining time is the target
minus the wait of the oldest, but at least a quarter of the target, so that a late queue catches up with bounded effort. Slots
beyond the number of ready tasks, or beyond a rate, would be idle and are not requested. Tasks held by a limit, a pause or a
backoff are not ready: more workers would not help.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import msgspec

from treadle.api.lists import DesiredWorkers
from treadle.kernel.store.queries import QueueDepth
from treadle.model.errors import InvalidInput
from treadle.model.lists import MAX_WORKERS, QueueRule, check_count
from treadle.model.states import TaskState
from treadle.model.tasks import Task
from treadle.model.values import shown

_ENDED_BY_WORKERS = (TaskState.COMPLETED, TaskState.FAILED)

LEAST_LEFT = 0.25
"""The fraction of the target that always remains to start ready tasks."""


class Load(msgspec.Struct, frozen=True):
    """The current load of one queue. Durations are milliseconds; `service_for` is None if no task has ended recently."""

    ready: int
    running: int
    oldest_for: int = 0
    service_for: float | None = None
    rate: float | None = None
    """Tasks per second that may start, or None."""


def slots_for(load: Load, target_for: int) -> int:
    """Slots that the queue needs now; without known service times, one more than is running, then the next reading decides."""
    if load.ready <= 0:
        return load.running
    if load.service_for is None:
        return load.running + 1
    left_for = max(target_for - load.oldest_for, target_for * LEAST_LEFT)
    wanted = math.ceil(load.ready * load.service_for / left_for)
    if load.rate is not None:
        wanted = min(wanted, math.ceil(load.rate * load.service_for / 1000))
    return load.running + min(max(wanted, 1), load.ready)


def desired_workers(
    loads: Iterable[Load], *, target_for: int, concurrency: int, minimum: int = 0, maximum: int = MAX_WORKERS
) -> int:
    """Workers of `concurrency` slots that these queues need together, within the bounds.

    Monotonic: never falls with more, older or longer tasks, and never rises with the target.
    """
    slots = sum(slots_for(load, target_for) for load in loads)
    return min(max(math.ceil(slots / concurrency), minimum), maximum)


def check_bounds(target_for: int, concurrency: int | None, minimum: int, maximum: int) -> None:
    """Raise `InvalidInput` for invalid bounds."""
    if target_for < 1:
        raise InvalidInput("The target latency must be a millisecond or more.")
    if concurrency is not None:
        check_count(concurrency, "The concurrency of a worker")
    if type(minimum) is not int or type(maximum) is not int or not 0 <= minimum <= maximum:
        raise InvalidInput(
            f"minimum and maximum are whole numbers, 0 <= minimum <= maximum, not {shown(minimum)} and {shown(maximum)}."
        )


def service_for(tasks: Sequence[Task]) -> float | None:
    """Mean milliseconds from the last claim to the end of the tasks that workers ended, or None without any.

    An operator ends the others (canceled tasks, discarded dead letters), long after their last claim.
    """
    took = [
        max(task.finished_at - task.claimed_at, 0)
        for task in tasks
        if task.state in _ENDED_BY_WORKERS and task.finished_at is not None and task.claimed_at is not None
    ]
    return sum(took) / len(took) if took else None


def load_of(depth: QueueDepth, rule: QueueRule, ends: Sequence[Task], now: int) -> Load:
    """The load of a queue, from its depth and its last finished tasks; a paused queue has no ready tasks."""
    service = service_for([task for task in ends if task.queue_id == depth.queue_id])
    if rule.paused or depth.oldest_due_at is None:
        return Load(0, depth.running, 0, service, rule.rate)
    return Load(depth.ready, depth.running, max(now - depth.oldest_due_at, 0), service, rule.rate)


def scaling(
    task_list: str,
    name: str | None,
    loads: Sequence[Load],
    *,
    target_for: int,
    workers: int,
    concurrency: int,
    minimum: int = 0,
    maximum: int = MAX_WORKERS,
) -> DesiredWorkers:
    """The desired number of workers, with the reason."""
    desired = desired_workers(loads, target_for=target_for, concurrency=concurrency, minimum=minimum, maximum=maximum)
    ready, running = sum(load.ready for load in loads), sum(load.running for load in loads)
    oldest_for = max((load.oldest_for for load in loads), default=0)
    weights = [(load.service_for, load.ready + load.running) for load in loads if load.service_for is not None]
    total = sum(weight for _, weight in weights)
    mean = sum(service * weight for service, weight in weights) / total if total else None
    took = "no task has ended recently" if mean is None else f"each takes {mean / 1000:.3g} s"
    text = (
        f"{ready} ready (the oldest for {oldest_for / 1000:.3g} s) and {running} running, {took}: "
        f"{desired} worker(s) of {concurrency} would start them within {target_for / 1000:g} s; currently {workers}"
    )
    if not ready and not running:
        text = f"nothing is ready or running: {desired} worker(s) of {concurrency} are desired; currently {workers}"
    return DesiredWorkers(task_list, name, desired, workers, concurrency, ready, running, oldest_for, mean, target_for, text)
