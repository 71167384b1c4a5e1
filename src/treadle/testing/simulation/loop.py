"""An event loop with virtual time: when no callback is ready, time jumps to the next timer.

Callbacks run in the order in which they became ready, as on every asyncio loop, so a run is deterministic. Hours pass in
milliseconds. There are no IO and no threads.

It relies on hooks of `asyncio.BaseEventLoop` that are not public: `_selector`, `_process_events` and `_write_to_self`.
`tests/simulation/test_harness.py` fails with the name of the hook if a version of Python changes them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar, TypeVarTuple

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class NothingToDo(RuntimeError):
    """Every task waits, and no timer is left."""


class _Timers:
    """Replaces the selector: instead of waiting, it advances the time."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop

    def select(self, timeout: float | None) -> list[Any]:
        if timeout is None:
            raise NothingToDo("Every task waits, and no timer is left to wake one.")
        self._loop.advance(timeout)
        return []


class VirtualLoop(asyncio.BaseEventLoop):
    """Time begins at 0 seconds. Calls for an executor run on the loop, in their turn."""

    def __init__(self) -> None:
        super().__init__()
        self._virtual = 0.0
        self._selector = _Timers(self)

    def time(self) -> float:
        """Return the virtual seconds since the loop was created."""
        return self._virtual

    def advance(self, seconds: float) -> None:
        """Advance the time. Rounding may miss a timer by one float, which is within the resolution of the loop's clock."""
        self._virtual += max(seconds, 0.0)

    def run_in_executor(self, executor: Any, func: Callable[[*Ts], T], *args: *Ts) -> asyncio.Future[T]:
        """Call the function on the loop."""
        answer: asyncio.Future[T] = self.create_future()

        def call() -> None:
            if answer.cancelled():
                return
            try:
                answer.set_result(func(*args))
            except Exception as error:
                answer.set_exception(error)

        self.call_soon(call)
        return answer

    def _process_events(self, event_list: list[Any]) -> None:
        """Do nothing: there is no IO."""

    def _write_to_self(self) -> None:
        """Do nothing: no selector blocks."""
