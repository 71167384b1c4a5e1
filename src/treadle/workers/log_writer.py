"""What handlers log about their tasks: buffered, written together about twice a second, never in the way of the work."""

from __future__ import annotations

import asyncio
from collections import deque

from treadle.kernel.store.ports import LogStore
from treadle.kernel.telemetry.events import Emit, LoopError, StoreBack, StoreTrouble
from treadle.model.errors import StoreError
from treadle.model.tasks import LogLine

_EVERY = 0.5
_BATCH = 500
_MOST = 100_000
"""Lines kept in memory while the store cannot take them; the oldest are dropped beyond that."""


class LineWriter:
    """Takes lines from any thread and appends them to the store."""

    def __init__(self, store: LogStore, emit: Emit) -> None:
        self._store = store
        self._emit = emit
        self._lines: deque[LogLine] = deque(maxlen=_MOST)
        self._trouble = False

    def add(self, line: LogLine) -> None:
        """Keep the line for the next write; may be called from any thread."""
        self._lines.append(line)

    async def run(self) -> None:
        """Write what has come, until canceled."""
        while True:
            await asyncio.sleep(_EVERY)
            await self.flush()

    async def flush(self) -> None:
        """Write all lines that are there now; on trouble they are kept for the next time."""
        while self._lines:
            batch = [self._lines.popleft() for _ in range(min(len(self._lines), _BATCH))]
            try:
                await self._store.append_lines(batch)
            except StoreError as error:
                self._lines.extendleft(reversed(batch))
                if not self._trouble:
                    self._emit(StoreTrouble("writing handlers' lines", str(error), _EVERY))
                self._trouble = True
                return
            except Exception as error:
                self._emit(LoopError("lines", f"{len(batch)} line(s) of handlers could not be stored: {error!r}"))
            if self._trouble:
                self._trouble = False
                self._emit(StoreBack("writing handlers' lines"))


class LogWriter(LineWriter):
    """Writes by itself, soon after a line has come; takes lines on its event loop only, and costs nothing without any."""

    def __init__(self, store: LogStore, emit: Emit) -> None:
        super().__init__(store, emit)
        self._writing: asyncio.Task[None] | None = None
        self._one = asyncio.Lock()

    def add(self, line: LogLine) -> None:
        """Keep the line, and see to it that it is written."""
        super().add(line)
        if self._writing is None:
            self._writing = asyncio.get_running_loop().create_task(self._write_soon())

    async def flush(self) -> None:
        """Write all lines that are there now, without waiting for the time to do so; none is left on its way."""
        async with self._one:
            await super().flush()
            writing = self._writing
            if writing is not None and not self._lines:
                writing.cancel()  # it sleeps, or waits for us
        if writing is not None and writing.cancelling():
            await asyncio.wait([writing])

    async def _write_soon(self) -> None:
        try:
            while self._lines:
                await asyncio.sleep(_EVERY)
                async with self._one:
                    await super().flush()
        finally:
            self._writing = None
