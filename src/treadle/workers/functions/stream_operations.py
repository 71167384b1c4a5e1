"""Streams that a function reads: each batch of entries is a recorded step, so that every replay reads the same.

While there is nothing to read, the run is suspended. This process follows the stream meanwhile, and wakes the run by a message to
its inbox. If the process dies, another one finds the entries at `WAKE_AFTER`, and follows the stream from then on.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from contextlib import suppress

from treadle.api.streams import StreamEntry, StreamPage
from treadle.api.wire import from_builtins, to_builtins
from treadle.kernel.functions.steps import READ, Recorded
from treadle.kernel.store.units import Row
from treadle.kernel.streams import check_place
from treadle.model.errors import NotFound, TreadleError
from treadle.model.ids import Ref, parse_id
from treadle.model.states import StepState
from treadle.model.tasks import NewTask
from treadle.workers.call import outcome_of_error
from treadle.workers.functions.driver import Driver
from treadle.workers.functions.execution import FunctionBranch
from treadle.workers.functions.inbox import Wait
from treadle.workers.functions.journal import error_of, failure_of
from treadle.workers.functions.wait_operations import ChildRun, WaitOperation

BATCH = 100
"""Limit on the entries of one step."""
WAKE_AFTER = 30_000
"""Milliseconds after which a run that waits for entries reads again without a message."""


class ReadOperation(WaitOperation):
    """The next entries of a stream, or its end."""

    __slots__ = ("offset", "work")

    def __init__(self, driver: Driver, work: Ref, name: str, offset: int) -> None:
        super().__init__(driver, READ, name)
        self.work, self.offset = work, offset

    async def run(self, branch: FunctionBranch) -> StreamPage:
        execution = self.driver.execution
        await execution.wait_while_held()
        await self.driver.recorder.commit_decided(branch)  # it may start the run whose stream is read
        recorded = self._next_step(branch)
        if (error := error_of(recorded)) is not None:
            raise error
        if recorded.state != StepState.COMPLETED:
            await self._record(branch, recorded)
        return from_builtins(recorded.value, StreamPage)  # type: ignore[no-any-return]

    def _request(self, recorded: Recorded) -> tuple[Sequence[NewTask], Sequence[Row]]:
        recorded.about = f"of {parse_id(self.work)} from offset {self.offset}"
        return (), ()

    async def _record(self, branch: FunctionBranch, recorded: Recorded) -> None:
        execution, journal = self.driver.execution, self.driver.journal
        try:
            while (page := await self._read()) is None:
                await self._wait_for_entries(branch, recorded)
        except NotFound as error:
            problem = outcome_of_error(error, "stream_error").problem
            recorded.state, recorded.error = StepState.FAILED, problem.as_json()
        else:
            recorded.state, recorded.value = StepState.COMPLETED, to_builtins(page)
        recorded.wake_at, recorded.ended_at = None, execution.now()
        journal.write(recorded, branch.next_unit(), checked=True)
        if recorded.state == StepState.FAILED:
            raise failure_of(recorded)

    async def _read(self) -> StreamPage | None:
        """Return the next entries, or the end of the stream; None if there is nothing yet."""
        execution = self.driver.execution
        try:
            page = await execution.runtime.streams.read_next(self.work, self.name, self.offset, BATCH)
        except NotFound:
            if isinstance(self.work, ChildRun):  # started as soon as this run is resumed
                return None
            raise
        except TreadleError as error:
            raise execution.crashed(error) from None
        self.offset = page.next_offset
        return page if page.entries or page.ended else None

    async def _wait_for_entries(self, branch: FunctionBranch, recorded: Recorded) -> None:
        inbox = self.driver.inbox
        recorded.wake_at = self.driver.execution.now() + WAKE_AFTER
        following = asyncio.create_task(self._follow(recorded.id))
        try:
            wait = Wait(branch, recorded, child_step_id=recorded.id, wake_at=recorded.wake_at)
            inbox.register(wait)
            await inbox.block(wait)
        finally:
            following.cancel()
        recorded.state, recorded.error = StepState.RUNNING, None

    async def _follow(self, step_id: str) -> None:
        execution = self.driver.execution
        with suppress(TreadleError):  # the run wakes by itself
            await execution.runtime.streams.wake_reader(execution.run_id, step_id, self.work, self.name, self.offset)


class StreamReader:
    """The entries of a stream: `async for entry in ctx.read_stream(child, "tokens")`. It ends with the work that writes them."""

    __slots__ = ("_driver", "_ended", "_entries", "_name", "_offset", "_work")

    def __init__(self, driver: Driver, work: Ref, name: str, offset: int) -> None:
        check_place(name, offset)
        parse_id(work)
        self._driver, self._work, self._name, self._offset = driver, work, name, offset
        self._entries: deque[StreamEntry] = deque()
        self._ended = False

    def __aiter__(self) -> StreamReader:
        return self

    async def __anext__(self) -> StreamEntry:
        while not self._entries:
            if self._ended:
                raise StopAsyncIteration
            page = await ReadOperation(self._driver, self._work, self._name, self._offset)
            self._entries.extend(page.entries)
            self._offset, self._ended = page.next_offset, page.ended
        return self._entries.popleft()
