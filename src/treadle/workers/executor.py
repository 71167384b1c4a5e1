"""The executor of handlers that must not run on the event loop: threads, and processes that can be killed."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from treadle.workers.call import caught, noted_in_thread, result_of
from treadle.workers.context import Context, RegisteredHandler


class SystemExecutor:
    """Runs handlers in real threads and processes."""

    def __init__(self, threads: int = 16) -> None:
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="treadle-handler")
        self._abandoned: Counter[str] = Counter()
        self._counting = threading.Lock()

    async def in_thread(self, handler: RegisteredHandler, arguments: tuple[Any, ...]) -> Any:
        """Call the handler in a thread; after a cancellation the thread stays occupied until the handler returns."""
        # the copied context has, for example, the span of the attempt
        run = contextvars.copy_context().run
        call = self._threads.submit(run, noted_in_thread, handler.name, caught, handler.call, *arguments)
        try:
            returned = await asyncio.wrap_future(call)
        except asyncio.CancelledError:
            if not call.cancel():
                self._count(handler.name, 1)
                call.add_done_callback(lambda _: self._count(handler.name, -1))
            raise
        return result_of(returned)

    def _count(self, name: str, more: int) -> None:
        with self._counting:
            self._abandoned[name] += more

    def abandoned(self, names: Iterable[str]) -> int:
        """Return how many threads still run those handlers after a cancellation."""
        if not self._abandoned:
            return 0
        with self._counting:
            return sum(self._abandoned[name] for name in names)

    async def in_process(self, handler: RegisteredHandler, context: Context) -> Any:
        """Call the handler in a new process. A cancellation, or the end of this process, kills it and its child processes."""
        from treadle.workers.isolation import call_isolated  # most workers have no isolated handlers

        return await call_isolated(handler, context)

    def close(self) -> None:
        """Accept no more calls; running threads finish by themselves."""
        self._threads.shutdown(wait=False, cancel_futures=True)
