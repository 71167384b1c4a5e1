"""The number of tasks that a worker may have in progress: given by its user, or adapted to the time that its handlers take."""

from __future__ import annotations

LEAST = 100
"""Tasks in progress that a worker without a given concurrency always allows."""

MOST = 2_000
"""Tasks in progress that such a worker allows at most, unless its settings say otherwise."""

HANDLER_TIME = 2.0
"""Seconds of handler time that the tasks in progress may take together."""

_WEIGHT = 1 / 32
"""Weight of an attempt in the average of the time that handlers take."""


class Slots:
    """The limit of one worker on its tasks in progress.

    With `exactly`, the limit is that number. Otherwise it is the number of tasks that together take two seconds of handler time,
    by a moving average of the recent attempts of async handlers, but 100 at least and `most` at most: handlers that return within
    a millisecond get 2,000, those that take 20 ms or longer get 100. Quick tasks need many slots, because each keeps its slot
    until its result is committed; slow ones would only be held back from other workers. Since an average knows the past only, such
    a worker also claims nothing while 100 async handlers have started and not returned: tasks that are slower than those before
    them exceed 100 by two claims at most.
    """

    def __init__(self, exactly: int | None, most: int = MOST) -> None:
        self._exactly = exactly
        self._most = most
        self._least = min(LEAST, most)
        self._average = HANDLER_TIME / LEAST
        self._executing = 0

    @property
    def limit(self) -> int:
        """Return the number of tasks that may be in progress now."""
        if self._exactly is not None:
            return self._exactly
        return max(self._least, min(self._most, int(HANDLER_TIME / max(self._average, 1e-6))))

    @property
    def claimable(self) -> bool:
        """Whether the handlers that are executing leave room for a claim."""
        return self._exactly is not None or self._executing < self._least

    def begin(self) -> None:
        """Count an async handler that starts."""
        self._executing += 1

    def end(self, seconds: float | None) -> bool:
        """Note that it has returned after that time, or None if it was stopped; return whether a claim is possible again."""
        self._executing -= 1
        if self._exactly is not None:
            return False
        if seconds is not None:
            self._average += (seconds - self._average) * _WEIGHT
        return self._executing == self._least - 1
