"""Results of tasks and runs: wait for the end, then return the value or raise the error.

Callers that ask for tasks and runs, or wait for their end, share statements. Waiters are woken immediately by this process,
otherwise by one poll of the store for all of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from treadle.kernel.store.lookups import current_run, find_work
from treadle.kernel.telemetry.events import Emit, LoopError, StoreTrouble
from treadle.model.clock import Clock, Duration, milliseconds
from treadle.model.errors import RunFailed, StoreError, TaskFailed, TreadleError
from treadle.model.ids import Ref, is_canonical
from treadle.model.names import is_function
from treadle.model.outcomes import error_of_run, error_of_task
from treadle.model.retry import Backoff
from treadle.model.runs import Run
from treadle.model.states import RUN, TASK, RunState, TaskState
from treadle.model.tasks import Task
from treadle.model.values import Json, decode_error
from treadle.workers.exceptions import revived

if TYPE_CHECKING:
    from treadle.engine.kernel import Kernel


T = TypeVar("T", bound=Task | Run)
Find = Callable[[Sequence[str]], Awaitable[list[T]]]
"""Reads the tasks or runs with these ids from the store."""

_POLLS = Backoff(0.02, 0.5, 1.5)
"""Seconds between two polls: short at first, because many tasks end soon."""
_POLL_LIMIT = 1000
_OWN_ERRORS = (TimeoutError,)
"""Exceptions that mean something else to a caller who waits: that the work continues."""


class Results:
    """The results of the tasks and runs of an open kernel."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        store, clock, emit = kernel.store, kernel.clock, kernel.emit
        self.tasks: Waiters[Task] = Waiters(store.tasks.find_many, partial(store.tasks.find_many, ended=True), clock, emit)
        self.runs: Waiters[Run] = Waiters(
            store.runs.find_many, partial(store.runs.find_many, states=sorted(RUN.final)), clock, emit
        )

    async def of(self, work: Ref, timeout: Duration | None = None, entity: str | None = None) -> Json:
        """Wait for the end of a task or run and return its result, or raise the error that it ended with.

        The result of a workflow is its outputs, that of a function its return value, or that of the run it continued as.
        """
        kernel, finds = self._kernel, {TASK.entity: self.tasks.find, RUN.entity: self.runs.find}
        record = await finds[entity](work) if entity is not None and isinstance(work, str) and is_canonical(work) else None
        if record is None or record.namespace != kernel.settings.namespace:
            record = await find_work(kernel.store, kernel.settings.namespace, work, entity, finds)
        return await (self._of_run(record, timeout) if isinstance(record, Run) else self._of_task(record, timeout))

    async def _of_task(self, task: Task, timeout: Duration | None) -> dict[str, Json]:
        if not task.finished:
            async with _bound("Task", task.id, timeout):
                task = await self.tasks.wait(task.id)
        if task.state == TaskState.COMPLETED:
            return await self._kernel.value_store.unpack(task.result)
        error = decode_error(task.error)
        raise _typed(error_of_task(task.id, task.state, task.error_code, error), error)

    async def _of_run(self, first: Run, timeout: Duration | None) -> Json:
        store = self._kernel.store
        run = await current_run(store, first)
        async with _bound("Run", first.id, timeout):
            while not run.finished:
                run = await current_run(store, await self.runs.wait(run.id))
        if run.state == RunState.COMPLETED:
            outputs = await self._kernel.runs.outputs(run)
            return outputs.get("result") if is_function(run.flow_id) else outputs
        error = decode_error(run.error)
        raise _typed(error_of_run(run.id, run.state, run.failed_step_id, error), error)

    async def close(self) -> None:
        """Stop asking the store and cancel the callers that still wait."""
        await self.tasks.close()
        await self.runs.close()


@asynccontextmanager
async def _bound(entity: str, entity_id: str, timeout: Duration | None) -> AsyncIterator[None]:
    """Bound the wait for the end of a task or a lineage of runs."""
    seconds = None if timeout is None else milliseconds(timeout, "timeout") / 1000
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        message = f"{entity} {entity_id} has not ended after {seconds:g} s and continues; `why` explains its state."
        raise TimeoutError(message) from None


def _typed(failure: TreadleError, error: Mapping[str, Any]) -> TreadleError:
    """Return a failure also as an instance of the class of the original exception; the end of canceled work as it is."""
    return revived(failure, error, _OWN_ERRORS) if isinstance(failure, TaskFailed | RunFailed) else failure


class Waiters(Generic[T]):
    """Finds tasks or runs, and waits for them to end. All callers share one query; without callers there is none."""

    def __init__(self, find: Find[T], find_finished: Find[T], clock: Clock, emit: Emit) -> None:
        self._find = find
        self._find_finished = find_finished
        self._clock = clock
        self._emit = emit
        self._awaited: dict[str, set[asyncio.Future[T]]] = {}
        """The futures of the callers, by id."""
        self._poller: asyncio.Task[None] | None = None
        self._woken = asyncio.Event()
        self._hints: set[str] = set()
        """Ids that may have ended: polled immediately, the others at intervals."""
        self._lookups: dict[str, asyncio.Future[T | None]] = {}
        """The lookups of this turn of the event loop, by id."""
        self._running: dict[asyncio.Task[None], dict[str, asyncio.Future[T | None]]] = {}
        """The lookups that the store has not answered."""

    async def find(self, task_id: str) -> T | None:
        """Return the task as it is now; None if it does not exist. Calls in one turn of the event loop share a statement."""
        loop = asyncio.get_running_loop()
        if not self._lookups:
            loop.call_soon(self._start_lookups)
        if (future := self._lookups.get(task_id)) is None:
            future = self._lookups[task_id] = loop.create_future()
        return await asyncio.shield(future)

    def _start_lookups(self) -> None:
        lookups, self._lookups = self._lookups, {}
        if lookups:
            running = asyncio.get_running_loop().create_task(self._look_up(lookups))
            self._running[running] = lookups
            running.add_done_callback(self._running.pop)

    async def _look_up(self, lookups: dict[str, asyncio.Future[T | None]]) -> None:
        tasks: dict[str, T] = {}
        try:
            for batch in _batches(list(lookups)):
                tasks |= {task.id: task for task in await self._find(batch)}
        except Exception as error:
            for future in lookups.values():
                future.set_exception(error)
                future.exception()  # its callers may have been canceled
        else:
            for task_id, future in lookups.items():
                future.set_result(tasks.get(task_id))

    async def wait(self, task_id: str) -> T:
        """Return the task once it is finished."""
        loop = asyncio.get_running_loop()
        callers = self._awaited.setdefault(task_id, set())
        if not callers:
            self._hint([task_id])  # it may have ended since the caller read it
        if self._poller is None or self._poller.done():
            self._poller = loop.create_task(self._poll())
        ended: asyncio.Future[T] = loop.create_future()
        callers.add(ended)
        try:
            return await ended
        finally:
            callers.discard(ended)
            if not callers and self._awaited.get(task_id) is callers:
                del self._awaited[task_id]

    def finished(self, task_ids: Iterable[str]) -> None:
        """Poll now if a caller waits for one of these tasks, which ended in this process."""
        if self._awaited and (ended := [task_id for task_id in task_ids if task_id in self._awaited]):
            self._hint(ended)

    def _hint(self, task_ids: Iterable[str]) -> None:
        self._hints.update(task_ids)
        self._woken.set()

    async def close(self) -> None:
        """Stop asking the store and cancel the callers that still wait."""
        lookups, self._lookups = [self._lookups, *self._running.values()], {}
        asking = [*self._running, *([] if self._poller is None else [self._poller])]
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)
        for future in (future for lookup in lookups for future in lookup.values()):
            future.cancel()
        for ended in (caller for callers in self._awaited.values() for caller in callers):
            ended.cancel()

    async def _poll(self) -> None:
        pause, all_at = _POLLS.first, self._clock.monotonic() + _POLLS.first
        while self._awaited:
            poll_all = self._clock.monotonic() >= all_at
            task_ids = list(self._awaited) if poll_all else [task_id for task_id in self._hints if task_id in self._awaited]
            self._hints.clear()
            self._woken.clear()
            try:
                answered = await self._answer(task_ids)
                if poll_all:
                    pause = _POLLS.first if answered else _POLLS.after(pause)
            except StoreError as error:
                self._emit(StoreTrouble("waiting for results", str(error), _POLLS.cap))
                poll_all, pause = True, _POLLS.cap
            except Exception as error:
                self._emit(LoopError("results", repr(error)))
                poll_all, pause = True, _POLLS.cap
            if poll_all:
                all_at = self._clock.monotonic() + pause
            try:
                async with asyncio.timeout(max(all_at - self._clock.monotonic(), 0)):
                    await self._woken.wait()
            except TimeoutError:
                continue

    async def _answer(self, task_ids: Sequence[str]) -> int:
        """Resolve the waiters of the tasks that have ended; return their number."""
        count = 0
        for batch in _batches(task_ids):
            for task in await self._find_finished(batch):
                count += 1
                for ended in self._awaited.pop(task.id, ()):
                    if not ended.done():
                        ended.set_result(task)
        return count


def _batches(task_ids: Sequence[str]) -> Iterator[Sequence[str]]:
    """Split the ids into batches of one statement each."""
    return (task_ids[start : start + _POLL_LIMIT] for start in range(0, len(task_ids), _POLL_LIMIT))
