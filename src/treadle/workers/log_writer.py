"""The writer of log lines: buffers the lines of handlers and writes them in batches, about twice a second, off the hot path."""

from __future__ import annotations

import asyncio
from collections import deque

from treadle.kernel.store.ports import Store
from treadle.kernel.telemetry.events import Emit, LoopError, StoreBack, StoreTrouble
from treadle.model.errors import StoreError
from treadle.model.tasks import LogLine

_WRITE_EVERY = 0.5
_BATCH = 500
_LINES_LIMIT = 100_000
"""Log lines kept in memory while the store cannot be reached; beyond that the oldest are dropped."""


class LogWriter:
    """Accepts log lines, and appends them to the store soon afterwards."""

    def __init__(self, store: Store, emit: Emit) -> None:
        self._store = store
        self._emit = emit
        self._lines: deque[LogLine] = deque(maxlen=_LINES_LIMIT)
        self._trouble = False
        self._one = asyncio.Lock()
        self.loop: asyncio.AbstractEventLoop | None = None
        """The event loop on which lines are written, for `add` in other threads; default: that of the first caller."""
        self._is_scheduled = False
        self._writing: asyncio.Task[None] | None = None

    def add(self, line: LogLine) -> None:
        """Buffer the log line, and schedule a write; any thread may call this once there is a `loop`."""
        self._lines.append(line)
        if not self._is_scheduled:
            self._schedule()

    def _schedule(self) -> None:
        self._is_scheduled = True
        self.loop = self.loop or asyncio.get_running_loop()
        self.loop.call_soon_threadsafe(self.loop.call_later, _WRITE_EVERY, self._begin)

    def _begin(self) -> None:
        self._is_scheduled = False
        if self._lines:
            self._writing = asyncio.ensure_future(self._write_all())

    async def flush(self) -> None:
        """Write all buffered log lines immediately; when this returns, no write is in progress."""
        await self._write_all()
        if self._writing is not None:
            await asyncio.wait([self._writing])

    async def _write_all(self) -> None:
        async with self._one:
            await self._write()
        if self._lines and not self._is_scheduled:  # the store cannot be reached
            self._schedule()

    async def _write(self) -> None:
        """Write all buffered log lines; if the store cannot be reached, keep them for the next time."""
        while self._lines:
            batch = [self._lines.popleft() for _ in range(min(len(self._lines), _BATCH))]
            try:
                await self._store.log.append_lines(batch)
            except StoreError as error:
                self._lines.extendleft(reversed(batch))
                if not self._trouble:
                    self._emit(StoreTrouble("writing log lines", str(error), _WRITE_EVERY))
                self._trouble = True
                return
            except Exception as error:
                self._emit(LoopError("log writer", f"{len(batch)} log line(s) of handlers could not be stored: {error!r}"))
            if self._trouble:
                self._trouble = False
                self._emit(StoreBack("writing log lines"))
