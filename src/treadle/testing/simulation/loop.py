"""An event loop on which time passes only when nothing else can happen: then it jumps to the next timer.

Callbacks run in the order in which they became ready, as on every loop of asyncio, so what happens on it is a function of
what was started on it. Hours pass in milliseconds. There is no IO here, and there are no threads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar, TypeVarTuple

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class NothingToDo(RuntimeError):
    """Everything waits, and no timer will ever end that."""


class _Timers:
    """In the place of a selector: asked to wait, it moves the time."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop

    def select(self, timeout: float | None) -> list[Any]:
        if timeout is None:
            raise NothingToDo("Everything waits for something that nobody will do.")
        if timeout > 0:
            self._loop.jump(timeout)
        return []


class VirtualLoop(asyncio.BaseEventLoop):
    """Seconds begin at 0. What asks for a thread runs in this one, in its turn."""

    def __init__(self) -> None:
        super().__init__()
        self._virtual = 0.0
        self._selector = _Timers(self)

    def time(self) -> float:
        """Seconds since the loop was made, in its own time."""
        return self._virtual

    def jump(self, seconds: float) -> None:
        """Let so much time pass, or just as much as it takes to the next timer: sums of floats may fall short of it."""
        scheduled: list[asyncio.TimerHandle] = self._scheduled  # type: ignore[attr-defined]
        after = self._virtual + seconds
        self._virtual = min(after, scheduled[0].when()) if scheduled else after

    def run_in_executor(self, executor: Any, func: Callable[[*Ts], T], *args: *Ts) -> asyncio.Future[T]:
        """Call it soon, here."""
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
        """There are none."""

    def _write_to_self(self) -> None:
        """Nobody sleeps who would have to be woken."""
