"""The model's text so far, shown in the step while it runs, and written to a stream of the run if asked for."""

from __future__ import annotations

from treadle.kernel.runs.service import Runs
from treadle.model.clock import Clock
from treadle.model.errors import TreadleError
from treadle.model.runs import TEXT
from treadle.model.tasks import Task
from treadle.workers.streams import StreamWriter

_SHOWN = 4000
_PIECE = 8000
"""Characters of one entry."""


class StepStream:
    """Updates one step: immediately for the first words, then at intervals, because each update is a commit."""

    def __init__(self, runs: Runs, clock: Clock, task: Task, every: float, tokens: StreamWriter | None = None) -> None:
        self._runs = runs
        self._clock = clock
        self._task = task
        self._every = every
        self._next_at = clock.monotonic()
        self._tokens = tokens
        self._written = ""

    async def show(self, text: str) -> None:
        """Show the end of the text. A step that no longer waits, or a store error, does not stop the response."""
        if self._tokens is not None:
            self._write(text.replace("\x00", ""), self._tokens)
        task, now = self._task, self._clock.monotonic()
        if now < self._next_at or task.run_id is None or task.step_id is None:
            return
        self._next_at = now + self._every
        try:
            await self._runs.update_step(task.run_id, task.step_id, {TEXT: text[-_SHOWN:].replace("\x00", "")})
        except TreadleError:
            return

    def _write(self, text: str, tokens: StreamWriter) -> None:
        """Write the text that is new; each message of the model begins on a new line."""
        if not text.startswith(self._written):
            tokens.write("\n")
            self._written = ""
        more = text[len(self._written) :]
        for start in range(0, len(more), _PIECE):
            tokens.write(more[start : start + _PIECE])
        self._written = text
