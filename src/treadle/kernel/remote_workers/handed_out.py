"""Tasks that this process handed out to remote workers, so that their completion needs no read.

A completion depends on nothing that changes while a claim is held, and its commit is fenced by the claim. Other reports read the
task: an earlier one may have changed it through another process.
"""

from __future__ import annotations

from treadle.model.tasks import Claim, Task

MOST_TASKS = 2000
"""Tasks that are remembered; the completion of any other one reads it."""
LARGEST_PAYLOAD = 8 * 1024
"""Characters of the payload of a task that is remembered."""


class HandedOut:
    """The most recent tasks by id."""

    def __init__(self) -> None:
        self._tasks: dict[str, Task] = {}

    def add(self, task: Task) -> None:
        """Remember a task that was just claimed, in place of its earlier claim."""
        self._tasks.pop(task.id, None)  # keeps the oldest first
        if len(task.payload) <= LARGEST_PAYLOAD:
            self._tasks[task.id] = task
            if len(self._tasks) > MOST_TASKS:
                del self._tasks[next(iter(self._tasks))]

    def take(self, claim: Claim) -> Task | None:
        """Return the task and forget it, if it was handed out under this claim and is remembered."""
        task = self._tasks.get(claim.task_id)
        if task is None or task.claim != claim:
            return None
        return self._tasks.pop(claim.task_id)
