"""Taking tasks for whoever executes them: what waits for a person is tended on the way, and never handed out."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from treadle.kernel.approvals.service import Tend
from treadle.kernel.store.crashpoints import reach
from treadle.model.errors import StoreError
from treadle.model.states import TaskState
from treadle.model.tasks import Task


async def take(claim: Callable[[int], Awaitable[list[Task]]], tend: Tend, limit: int) -> list[Task]:
    """Take up to `limit` tasks, in as many calls of `claim` (which is told for how many there is room) as that needs.

    A task that waits for an approval is ready when a reminder or its expiry is due: that is done here, as it is no handler's
    business.
    """
    taken: list[Task] = []
    try:
        while len(taken) < limit and (tasks := await claim(limit - len(taken))):
            reach("claim.after")
            taken += [task for task in tasks if task.state != TaskState.AWAITING_APPROVAL]
            for task in tasks:
                if task.state == TaskState.AWAITING_APPROVAL:
                    await tend(task, task.claim)
    except StoreError:
        if not taken:  # what is there is held already
            raise
    return taken
