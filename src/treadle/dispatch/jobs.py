"""Reads of jobs: the tasks of one lane, as callers of dispatch see them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from treadle.dispatch.errors import JobNotFound, StorageError
from treadle.dispatch.records import SHOWN_STATES, InvalidIssue, TaskState, TaskStatus, state_of
from treadle.engine import Engine
from treadle.kernel.telemetry.events import Emit, StoreTrouble
from treadle.model.clock import Clock
from treadle.model.errors import InvalidInput, StoreError, TaskNotFound, UnreadableValue
from treadle.model.ids import parse_id
from treadle.model.names import Lane
from treadle.model.tasks import LogLine, Task
from treadle.model.text import safe_logger
from treadle.model.values import decode_object

DELAYS = (1.0, 2.0, 4.0)
"""Seconds before each retry."""

T = TypeVar("T")


class StorageRetry:
    """Retries idempotent calls: a commit without a response may have been applied."""

    def __init__(self, clock: Clock, emit: Emit) -> None:
        self._clock = clock
        self._emit = emit

    async def __call__(self, doing: str, work: Callable[[], Awaitable[T]]) -> T:
        """Return the response, or raise `StorageError` after the last retry; other errors are raised immediately."""
        for delay in DELAYS:
            try:
                return await work()
            except StoreError as error:
                self._emit(StoreTrouble(doing, str(error), delay))
            await self._clock.sleep(delay)
        try:
            return await work()
        except StoreError as error:
            raise StorageError(doing, len(DELAYS) + 1, error) from error


_log = safe_logger("treadle.dispatch")


class Jobs:
    """The jobs of a lane."""

    def __init__(self, engine: Engine, lane: Lane, stored: StorageRetry) -> None:
        self._engine = engine
        self._lane = lane
        self._stored = stored

    async def get(self, task_id: str) -> Task:
        """Return the job's task, or raise `JobNotFound`, also for a task of another lane."""
        try:
            wanted = parse_id(task_id, "task id")
        except InvalidInput:
            raise JobNotFound(str(task_id)) from None
        try:
            task = await self._stored("reading a job", lambda: self._engine.kernel.reads.get_task(wanted))
        except TaskNotFound:
            raise JobNotFound(wanted) from None
        if task.lane != self._lane:
            raise JobNotFound(wanted)
        return task

    async def read(self, task: Task) -> TaskState:
        """Return the job with its issue; raise `InvalidIssue` for a task that another program stored."""
        return await self._stored("reading a job", lambda: self._shown(task))

    async def page(
        self, status: TaskStatus | str | None, before_id: str | None, limit: int
    ) -> tuple[list[TaskState], str | None, bool]:
        """Return a page of jobs, newest first, the start of the next page, and whether there may be one."""
        states = () if status is None else SHOWN_STATES[TaskStatus.of(status)]
        _, kind, task_list, name = self._lane

        async def look() -> tuple[list[TaskState], str | None, bool]:
            tasks = await self._engine.kernel.reads.list_tasks(
                states=states, name=name, task_list=task_list, kind=kind, before_id=before_id, limit=limit
            )
            jobs = [job for task in tasks if (job := await self._shown_if_one(task)) is not None]
            return jobs, tasks[-1].id if tasks else None, len(tasks) == limit

        return await self._stored("listing jobs", look)

    async def lines(self, task_id: str, limit: int) -> list[LogLine]:
        """Return the job's log lines, oldest first."""
        task = await self.get(task_id)
        return await self._stored("reading lines", lambda: self._engine.kernel.store.log.list_lines(task.id, limit))

    async def _shown(self, task: Task) -> TaskState:
        text = await self._engine.kernel.value_store.open_text(task.payload) if task.payload.startswith("@") else task.payload
        return state_of(task, decode_object(text))

    async def _shown_if_one(self, task: Task) -> TaskState | None:
        """Return the job; an invalid task must not hide the others."""
        try:
            return await self._shown(task)
        except (InvalidIssue, UnreadableValue) as error:
            _log.warning("task %s is left out: %s", task.id, error)
            return None
