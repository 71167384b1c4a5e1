"""Claim tasks for execution; tasks that wait for an approval are processed here and never handed out."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from treadle.kernel.approvals.service import ProcessDue
from treadle.kernel.store.process import failpoint
from treadle.model.errors import StoreError
from treadle.model.states import TaskState
from treadle.model.tasks import Task


async def take(claim: Callable[[int], Awaitable[list[Task]]], process_due: ProcessDue, limit: int) -> list[Task]:
    """Claim up to `limit` tasks, calling `claim` with the remaining capacity until it returns none.

    A task that waits for an approval becomes ready when a reminder or its expiry is due. `process_due` processes it; no handler
    runs.
    """
    claimed: list[Task] = []
    try:
        while len(claimed) < limit and (tasks := await claim(limit - len(claimed))):
            failpoint("claim.after")
            claimed += [task for task in tasks if task.state != TaskState.AWAITING_APPROVAL]
            for task in tasks:
                if task.state == TaskState.AWAITING_APPROVAL:
                    await process_due(task, task.claim)
    except StoreError:
        if not claimed:  # tasks already claimed are returned
            raise
    return claimed
