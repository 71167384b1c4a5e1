"""What a handler is given beside its payload: facts about its task, and ways to say how it is going. Safe in threads."""

from __future__ import annotations

import threading
from collections.abc import Callable

from treadle.model.errors import InvalidInput
from treadle.model.tasks import Claim, LogLine, Task
from treadle.model.values import Json, decode, encode

_LEVELS = ("debug", "info", "success", "warning", "error")
_LONGEST_MESSAGE = 4096
_flagging = threading.Lock()
"""Guards the making of a context's flag, which most attempts never need."""


class Context:
    """One attempt at one task, as its handler sees it."""

    __slots__ = ("_cancelled", "_now", "_on_line", "_on_progress", "progress_text", "progressed", "task", "token")

    def __init__(
        self,
        task: Task,
        now: Callable[[], int],
        on_line: Callable[[LogLine], None],
        on_progress: Callable[[str], None] | None = None,
    ) -> None:
        self.task = task
        self.token: Claim = task.claim
        self._now = now
        self._on_line = on_line
        self._on_progress = on_progress
        self._cancelled: threading.Event | None = None
        self.progressed = False
        self.progress_text: str | None = None

    @property
    def task_id(self) -> str:
        """The task's id."""
        return self.task.id

    @property
    def attempt(self) -> int:
        """The number of this execution, from 1."""
        return self.task.attempt

    @property
    def fencing_token(self) -> int:
        """Rises with each claim of the task: hand it to outside systems that can refuse an older one."""
        return self.task.claim_version

    @property
    def deadline_at(self) -> int | None:
        """When the task is no longer worth doing (ms since 1970), or None."""
        return self.task.deadline_at

    @property
    def checkpoint(self) -> Json:
        """What this handler left with `Waiting(..., checkpoint=...)`, or None."""
        return decode(self.task.checkpoint)

    @property
    def cancelled(self) -> bool:
        """Whether the work should stop: canceled, lease lost, timed out or shutting down. Sync handlers look at it."""
        return self._cancelled is not None and self._cancelled.is_set()

    def cancel(self) -> None:
        """Raise the flag that `cancelled` shows."""
        self._flag().set()

    def wait_cancelled(self, seconds: float) -> bool:
        """Sleep up to `seconds` in a sync handler, or until it should stop; whether it should."""
        return self._flag().wait(seconds)

    def _flag(self) -> threading.Event:
        with _flagging:
            if self._cancelled is None:
                self._cancelled = threading.Event()
            return self._cancelled

    def progress(self, fraction: float | None = None, message: str | None = None) -> None:
        """Say that the work gets on: a sign of life for the progress deadline, and a fraction (0 to 1) and text for people.

        Cheap; stored at most about once a second, with the lease. A fraction a little outside is taken for 0 or 1: how far
        the work is must not be what fails it.
        """
        if fraction is not None:
            if not -0.01 <= fraction <= 1.01:
                raise InvalidInput(f"progress takes a fraction from 0 to 1, not {fraction!r}.")
            fraction = min(max(fraction, 0.0), 1.0)
        parts = {"fraction": fraction, "message": None if message is None else message[:_LONGEST_MESSAGE]}
        text = encode({name: value for name, value in parts.items() if value is not None}, "progress")
        if self._on_progress is not None:
            self._on_progress(text)
        self.note_progress(text)

    def note_progress(self, text: str) -> None:
        """Take in a sign of life, as JSON; the keeper sends it on."""
        self.progress_text = text
        self.progressed = True

    def log(self, message: str, level: str = "info", **details: Json) -> None:
        """Write a line about this task, for people; kept with the task, not fenced, stored soon."""
        if level not in _LEVELS:
            raise InvalidInput(f"level must be one of {', '.join(_LEVELS)}, not {level!r}.")
        text = str(message)[:_LONGEST_MESSAGE].replace("\x00", "\\0")
        self.add_line(
            LogLine(
                task_id=self.task.id,
                at=self._now(),
                level=level,
                message=text if text.isascii() else text.encode("utf-8", "replace").decode(),
                details=encode(details, "details") if details else None,
                run_id=self.task.run_id,
                step_id=self.task.step_id,
            )
        )

    def add_line(self, line: LogLine) -> None:
        """Take in a line that is complete."""
        self._on_line(line)
