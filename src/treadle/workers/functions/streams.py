"""Streams of a function. Entries of a step belong to the attempt at the step: a repeated step begins a new generation of them. The
code between steps is deterministic, so a replay repeats its entries, of which those that are stored are skipped."""

from __future__ import annotations

import asyncio
import threading
from itertools import count

from treadle.kernel.store.units import Row
from treadle.model.errors import ClaimLost, MisusedContext
from treadle.workers.functions.branches import Branch
from treadle.workers.functions.determinism import executing
from treadle.workers.functions.execution import Execution
from treadle.workers.functions.journal import Journal
from treadle.workers.streams import Outlet, Streams


class FunctionStreams:
    """The streams that one run writes in this process."""

    def __init__(self, execution: Execution, journal: Journal) -> None:
        self._execution = execution
        self._journal = journal
        self._outlet: Outlet | None = None
        self._of_code: dict[str, Streams] = {}
        """By the scope of the branch."""
        self._numbers = count(1)
        self._lock = threading.Lock()

    def add(self, name: str, text: str | None) -> None:
        """Append an entry (as JSON) for the step or the code that calls this; None only opens the stream."""
        self._current().add(name, text)

    async def flush(self) -> None:
        """Wait until all entries are stored; raises `ClaimLost`."""
        if self._outlet is not None:
            await self._outlet.flush()

    def _current(self) -> Streams:
        """Return the streams of the calling step, or of the calling branch of the function's code."""
        execution = self._execution
        found = executing.get(None)
        if found is None or execution.context is None:
            raise MisusedContext(f"A stream of {execution.function.lane_name} was written to outside the function.")
        branch, version = found[2], execution.token.version
        with self._lock:
            if self._outlet is None:
                self._outlet = Outlet(execution.context.stream_kernel, execution.task, lambda: execution.token)
            if branch.busy is not None:
                if branch.streams is None:
                    branch.streams = Streams(self._outlet, self._journal.ids.at(branch.place), f"{version}.{next(self._numbers)}")
                return branch.streams
            if execution.closed:
                raise asyncio.CancelledError
            if branch.scope not in self._of_code:
                writer = f"{execution.run_id}/{branch.scope}".rstrip("/.")
                self._of_code[branch.scope] = Streams(self._outlet, writer, "", replays=version > 1)
            return self._of_code[branch.scope]

    async def end_step(self, branch: Branch) -> tuple[Row, ...]:
        """End the session of the branch's step; return the rows to commit with the step."""
        with self._lock:
            streams, branch.streams = branch.streams, None
        return () if streams is None else await streams.outlet.close(streams)

    async def settle(self) -> None:
        """Store all entries before the task parks or ends."""
        try:
            await self.flush()
        except ClaimLost:
            self._execution.lose()

    def close(self) -> None:
        """Forget all entries that are not stored."""
        if self._outlet is not None:
            self._outlet.drop()
