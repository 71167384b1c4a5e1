"""The handler whose code a thread of this process runs, so that the one that held the interpreter lock can be named."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Generator
from types import CoroutineType
from typing import Any, TypeVar

T = TypeVar("T")

_PREFIX = "handler "
_LONG = 0.5
"""Seconds after which a step of a coroutine is remembered when it is over."""

_now = time.monotonic  # noqa: TID251 - the clock of the lease keeper
_in_threads: dict[int, str] = {}
"""By the native id of a thread: the last handler that it called."""
_long_steps: dict[int, tuple[str, float, float]] = {}
"""By the native id of an event loop's thread: the handler of its last long step, with the start and the end of the step."""


def noted_in_thread(name: str, call: Callable[..., T], *arguments: Any) -> T:
    """Call a handler in a thread, and note its name."""
    _in_threads[threading.get_native_id()] = name
    return call(*arguments)


def noted(name: str, code: Awaitable[T]) -> Awaitable[T]:
    """Await a handler on the event loop, and note its name with each of its steps that takes long."""
    return _Steps(name, code) if isinstance(code, CoroutineType) else code


class _Steps:
    """Awaits a coroutine step by step."""

    __slots__ = ("_code", "_name")

    def __init__(self, name: str, code: CoroutineType[Any, Any, Any]) -> None:
        self._name = name
        self._code = code

    def __await__(self) -> Generator[Any, Any, Any]:
        step: Callable[[Any], Any] = self._code.send
        value: Any = None
        while True:
            started_at = _now()
            try:
                waits_for = step(value)
            except StopIteration as end:
                return end.value
            finally:
                if (ended_at := _now()) - started_at >= _LONG:
                    _long_steps[threading.get_native_id()] = self._name, started_at, ended_at
            try:
                value = yield waits_for
                step = self._code.send
            except BaseException as error:
                step, value = self._code.throw, error


def task_name(handler: str) -> str:
    """Return the name for the asyncio tasks of a handler."""
    return _PREFIX + handler


def handler_in(thread: int, loop: asyncio.AbstractEventLoop | None, since: float, until: float) -> str | None:
    """Return the handler that ran in the thread with that native id, or else on an event loop, for most of that time.

    Call it soon after that time, in another thread. None: it is not known.
    """
    if thread in _in_threads:
        return _in_threads[thread]
    for name, start, end in _long_steps.values():
        if min(end, until) - max(start, since) > (until - since) / 2:
            return name
    current = None if loop is None else asyncio.current_task(loop)
    name = "" if current is None else current.get_name()
    return name.removeprefix(_PREFIX) if name.startswith(_PREFIX) else None
