"""This process: its interrupts, and its crash at a point that a test names."""

from __future__ import annotations

import _thread
import asyncio
import os
import signal
import sys
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Any, NoReturn

from treadle.interfaces.cli.messages import INTERRUPTED
from treadle.kernel.store.process import POINTS, arm
from treadle.model.errors import InvalidInput

_INTERRUPT_TIMEOUT = 0.5
"""Seconds after which a Ctrl-C that the event loop has not processed is raised where the program is."""
_THREAD_ENDS = 0.2
_THREADS = "treadle-command"


def on_sigint(act: Callable[[], None]) -> None:
    """Call `act` on every SIGINT, even while the event loop is busy, and then the handler that is set now."""
    before = signal.getsignal(signal.SIGINT)

    def pressed(number: int, frame: Any) -> None:
        act()
        if callable(before):
            before(number, frame)

    signal.signal(signal.SIGINT, pressed)
    signal.siginterrupt(signal.SIGINT, False)


def run_interruptibly(running: Coroutine[Any, Any, object], loop_factory: Callable[[], asyncio.AbstractEventLoop] | None) -> None:
    """Run the coroutine. Ctrl-C cancels it; code that is still busy half a second later is interrupted where it is.

    Raises `KeyboardInterrupt` when it was canceled, or ends the process if a thread is still at work.
    """
    executor = ThreadPoolExecutor(thread_name_prefix=_THREADS)
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.get_loop().set_default_executor(executor)
        try:
            runner.run(_watched(running))
        except (asyncio.CancelledError, KeyboardInterrupt):
            _stop(executor)


async def _watched(running: Coroutine[Any, Any, object]) -> None:
    loop = asyncio.get_running_loop()
    runners = signal.getsignal(signal.SIGINT)

    def press() -> None:
        again = threading.Timer(_INTERRUPT_TIMEOUT, _thread.interrupt_main)  # the runner raises the second one
        again.daemon = True
        again.start()
        loop.call_soon_threadsafe(again.cancel)

    if threading.current_thread() is not threading.main_thread() or not callable(runners):
        await running
        return
    on_sigint(press)
    watching = signal.getsignal(signal.SIGINT)
    try:
        await running
    finally:
        if signal.getsignal(signal.SIGINT) is watching:
            signal.signal(signal.SIGINT, runners)


def _stop(executor: ThreadPoolExecutor) -> NoReturn:
    """Raise `KeyboardInterrupt`, or end the process: closing the event loop would wait for threads, such as that of a compiler."""
    executor.shutdown(wait=False, cancel_futures=True)
    threads = [thread for thread in threading.enumerate() if thread.name.startswith(_THREADS)]
    for thread in threads:
        thread.join(_THREAD_ENDS)
    if any(thread.is_alive() for thread in threads):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(INTERRUPTED)
    raise KeyboardInterrupt from None


def arm_crash(spec: str) -> None:
    """Arm `point` or `point:n` (the n-th time it is reached); an empty spec arms nothing."""
    if not spec:
        return
    point, colon, number = spec.partition(":")
    if point not in POINTS:
        raise InvalidInput(f"TREADLE_CRASH_AT names an unknown failpoint: {point!r}; choose one of {', '.join(POINTS)}.")
    if colon and (not number.isdecimal() or int(number) < 1):
        raise InvalidInput(f"TREADLE_CRASH_AT takes `point` or `point:n` with n from 1, not {spec!r}.")
    wanted = int(number or 1)
    reached = count(1)

    def crash(here: str) -> None:
        if here == point and next(reached) == wanted:
            os.kill(os.getpid(), signal.SIGKILL)

    arm(crash)
