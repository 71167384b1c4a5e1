"""Claims of one object that are not settled yet: agents name tasks and steps in their calls, never claims (D51)."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from treadle.model.tasks import Claim, Task


@dataclass(frozen=True, slots=True)
class Held:
    """A claimed task; `until` is the end of its lease on the monotonic clock."""

    task: Task
    until: float

    @property
    def claim(self) -> Claim:
        return self.task.claim


class Claims:
    """Claims by task and by step; thread-safe."""

    def __init__(self) -> None:
        self._held: dict[str, Held] = {}
        self._steps: dict[str, str] = {}
        self._lock = threading.Lock()

    def add(self, held: Held) -> None:
        """Add a claim; a later claim on the same task replaces the earlier one."""
        with self._lock:
            self._held[held.task.id] = held
            if held.task.step_id is not None:
                self._steps[held.task.step_id] = held.task.id

    def find(self, task_id: str) -> Held | None:
        """Return the claim on the task."""
        with self._lock:
            return self._held.get(task_id)

    def take(self, task_id: str) -> Held | None:
        """Remove and return the claim on the task, which is about to be settled."""
        with self._lock:
            held = self._held.pop(task_id, None)
            if held is not None and held.task.step_id is not None:
                self._steps.pop(held.task.step_id, None)
            return held

    def take_of_step(self, step_id: str) -> Held | None:
        """Remove and return the claim on the step's task."""
        with self._lock:
            task_id = self._steps.get(step_id)
        return None if task_id is None else self.take(task_id)

    def __len__(self) -> int:
        return len(self._held)
