"""Writers of log lines: they buffer the lines of handlers and write them in batches, about twice a second, off the hot path."""

from __future__ import annotations

import asyncio
from collections import deque

from treadle.kernel.store.ports import Store
from treadle.kernel.telemetry.events import Emit, LoopError, StoreBack, StoreTrouble
from treadle.model.errors import StoreError
from treadle.model.tasks import LogLine

_EVERY = 0.5
_BATCH = 500
_MOST = 100_000
"""Log lines kept in memory while the store cannot be reached; beyond that the oldest are dropped."""


class LogWriter:
    """Accepts log lines from any thread, and appends them to the store while `run` runs."""

    def __init__(self, store: Store, emit: Emit) -> None:
        self._store = store
        self._emit = emit
        self._lines: deque[LogLine] = deque(maxlen=_MOST)
        self._trouble = False
        self._one = asyncio.Lock()
        self._flush: asyncio.Future[None] | None = None

    def add(self, line: LogLine) -> None:
        """Buffer the log line for the next write; any thread may call this."""
        self._lines.append(line)

    async def run(self) -> None:
        """Write buffered log lines until canceled."""
        while True:
            await asyncio.sleep(_EVERY)
            if self._lines:
                self._flush = asyncio.ensure_future(self.flush())
                await asyncio.shield(self._flush)  # a write that has begun ends, and the last flush waits for it

    async def flush(self) -> None:
        """Write all buffered log lines; if the store cannot be reached, keep them for the next time."""
        async with self._one:
            await self._write()

    async def _write(self) -> None:
        while self._lines:
            batch = [self._lines.popleft() for _ in range(min(len(self._lines), _BATCH))]
            try:
                await self._store.log.append_lines(batch)
            except StoreError as error:
                self._lines.extendleft(reversed(batch))
                if not self._trouble:
                    self._emit(StoreTrouble("writing log lines", str(error), _EVERY))
                self._trouble = True
                return
            except Exception as error:
                self._emit(LoopError("log writer", f"{len(batch)} log line(s) of handlers could not be stored: {error!r}"))
            if self._trouble:
                self._trouble = False
                self._emit(StoreBack("writing log lines"))


class LazyLogWriter(LogWriter):
    """Starts a write by itself soon after a log line; accepts lines on its event loop only, and costs nothing without any."""

    def __init__(self, store: Store, emit: Emit) -> None:
        super().__init__(store, emit)
        self._writing: asyncio.Task[None] | None = None

    def add(self, line: LogLine) -> None:
        """Buffer the log line, and schedule a write."""
        super().add(line)
        if self._writing is None:
            self._writing = asyncio.get_running_loop().create_task(self._write_soon())

    async def flush(self) -> None:
        """Write all buffered log lines immediately; when this returns, no write is in progress."""
        async with self._one:
            await self._write()
            writing = self._writing
            if writing is not None and not self._lines:
                writing.cancel()  # it sleeps, or waits for the lock
        if writing is not None and writing.cancelling():
            await asyncio.wait([writing])

    async def _write_soon(self) -> None:
        try:
            while self._lines:
                await asyncio.sleep(_EVERY)
                async with self._one:
                    await self._write()
        finally:
            self._writing = None
