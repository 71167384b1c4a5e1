"""The model's text so far, shown in the step while it runs."""

from __future__ import annotations

from treadle.kernel.runs.service import Runs
from treadle.model.clock import Clock
from treadle.model.errors import TreadleError
from treadle.model.runs import TEXT
from treadle.model.tasks import Task

_SHOWN = 4000


class StepStream:
    """Updates one step: immediately for the first words, then at intervals, because each update is a commit."""

    def __init__(self, runs: Runs, clock: Clock, task: Task, every: float) -> None:
        self._runs = runs
        self._clock = clock
        self._task = task
        self._every = every
        self._next_at = clock.monotonic()

    async def show(self, text: str) -> None:
        """Show the end of the text. A step that no longer waits, or a store error, does not stop the response."""
        task, now = self._task, self._clock.monotonic()
        if now < self._next_at or task.run_id is None or task.step_id is None:
            return
        self._next_at = now + self._every
        try:
            await self._runs.update_step(task.run_id, task.step_id, {TEXT: text[-_SHOWN:].replace("\x00", "")})
        except TreadleError:
            return
