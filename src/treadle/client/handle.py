"""Handles over HTTP: the operations of `treadle.Handle` on a task or a run of a server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from inspect import signature
from typing import Any

from treadle.api.events import Event
from treadle.api.facade import Api
from treadle.api.runs import RunDetail, RunsApi
from treadle.api.steps import Step
from treadle.api.streams import StreamEntry
from treadle.api.tasks import TaskDetail, TasksApi, Why
from treadle.model.clock import Duration, milliseconds
from treadle.model.errors import InvalidInput, NotFound
from treadle.model.names import FUNCTION
from treadle.model.outcomes import error_of_run, error_of_task
from treadle.model.states import RUN, TASK, RunState, TaskState
from treadle.model.values import Json

_WAIT_FOR = 30.0
"""Seconds that one request waits."""
_PAGE = 1000


class RemoteHandle:
    """A task or a run of a server: its state, its result, and the operations on it.

    The methods are those of `treadle.Handle`; the log names the token of the client as the actor, and `result` raises
    `TaskFailed` or `RunFailed` without the class of the original exception.
    """

    __slots__ = ("_api", "_kind", "id")

    def __init__(self, api: Api, work_id: str) -> None:
        self._api = api
        self._kind: str | None = None
        """The kind of the run, or `task`; None until the server has shown it."""
        self.id = work_id

    def __repr__(self) -> str:
        return f"<RemoteHandle {self.id}>"

    async def status(self) -> TaskDetail | RunDetail:
        """Return its record: state, times, values, error, and the reason for its state; `str` of it is one line."""
        record: TaskDetail | RunDetail
        try:
            record = await self._api.tasks.get(self.id)
        except NotFound:
            record = await self._api.runs.get(self.id)
        self.id, self._kind = record.id, record.kind if isinstance(record, RunDetail) else TASK.entity
        return record

    async def _is_task(self) -> bool:
        if self._kind is None:
            await self.status()
        return self._kind == TASK.entity

    async def why(self) -> Why:
        """Explain its state: a code and a line of text."""
        return await self._api.system.why(self.id)

    async def steps(self) -> list[Step]:
        """Return the steps and blocks of a run, each below its parent."""
        if await self._is_task():
            raise InvalidInput(f"{self.id} is a task; only runs have steps.")
        page = await self._api.steps.list(self.id, limit=_PAGE)
        steps = page.steps
        while page.next_after is not None:
            page = await self._api.steps.list(self.id, limit=_PAGE, after=page.next_after)
            steps = steps + page.steps
        return steps

    async def events(self, after: int | None = None) -> AsyncGenerator[Event, None]:
        """Follow its entries of the log after the number `after`, for a run also those of its tasks and steps."""
        is_task = await self._is_task()
        which: Any = {"entity_id" if is_task else "run_id": self.id}
        async for event in self._api.events.follow(after_seq=after, **which):
            yield event

    async def cancel(self, *, reason: str | None = None, force: bool = False) -> None:
        """End it; the `reason` is shown in its log. With `force`, a function does not clean up."""
        await self._operate("cancel", reason=reason, force=force)

    async def retry(self, *, payload: Mapping[str, Json] | None = None, step: str | None = None) -> None:
        """Make a task live again, with an edited `payload` if one is given; or repeat what failed in a run, or in one `step`."""
        await self._operate("retry", payload=None if payload is None else dict(payload), step=step)

    async def pause(self, *, reason: str | None = None, interrupt: bool = False) -> None:
        """Hold it; attempts in progress end normally, or with `interrupt` that of a task is repeated after the resume."""
        await self._operate("pause", reason=reason, interrupt=interrupt)

    async def resume(self) -> None:
        """Release it after a pause."""
        await self._operate("resume")

    async def _operate(self, operation: str, **options: Any) -> None:
        entity, group = (TASK.entity, TasksApi) if await self._is_task() else (RUN.entity, RunsApi)
        options = {name: value for name, value in options.items() if value not in (None, False)}
        for name in options.keys() - signature(getattr(group, operation)).parameters:
            raise InvalidInput(f"{operation} of a {entity} does not take {name}.")
        await getattr(self._api.tasks if group is TasksApi else self._api.runs, operation)(self.id, **options)

    async def result(self, *, timeout: Duration | None = None) -> Any:
        """Wait for the end, at most `timeout`, and return the result, or raise the error that it ended with."""
        return await (self._result_of_task(timeout) if await self._is_task() else self._result_of_run(timeout))

    async def _result_of_task(self, timeout: Duration | None) -> Any:
        async with _bound(f"Task {self.id}", timeout):
            while not (task := await self._api.tasks.result(self.id, wait_for=_WAIT_FOR)).finished:
                pass
        if task.state == TaskState.COMPLETED:
            return task.result
        raise error_of_task(task.id, task.state, task.error_code, _object(task.error))

    async def _result_of_run(self, timeout: Duration | None) -> Any:
        async with _bound(f"Run {self.id}", timeout):
            while not (run := await self._api.runs.outputs(self.id, wait_for=_WAIT_FOR)).finished:
                pass
        if run.state == RunState.COMPLETED:
            outputs = _object(run.outputs)
            return outputs.get("result") if self._kind == FUNCTION else outputs
        raise error_of_run(run.ended_as, run.state, run.failed_step_id, _object(run.error))

    def stream(self, name: str, *, offset: int = 0) -> AsyncGenerator[StreamEntry, None]:
        """Follow the stream `name` of the task or run from `offset` on, until it has ended."""
        return self._api.streams.follow(self.id, name, offset=offset)

    async def query(self, name: str, *, wait: Duration = 0) -> Json:
        """Return the value that the function last published under the name; if there is none yet, `wait` for it, up to 60 s."""
        return (await self._api.runs.query(self.id, name, wait_for=milliseconds(wait, "wait") / 1000)).value

    async def signal(self, name: str, payload: Json = None, *, idempotency_key: str | None = None) -> bool:
        """Send the signal `name` with that `payload` to the function; False if one with the key was stored before."""
        return (await self._api.runs.signal(self.id, name, payload, idempotency_key=idempotency_key)).accepted

    async def update(
        self, name: str, payload: Json = None, *, timeout: Duration | None = None, idempotency_key: str | None = None
    ) -> Json:
        """Send the update `name` with that `payload` and return the function's answer; raises `TimeoutError` after `timeout`."""
        key = idempotency_key
        async with _bound(f"The update {name} of {self.id}", timeout):
            while True:
                update = await self._api.runs.update(self.id, name, payload, wait_for=_WAIT_FOR, idempotency_key=key)
                if update.answered:
                    return update.value
                key = update.idempotency_key


@asynccontextmanager
async def _bound(what: str, timeout: Duration | None) -> AsyncIterator[None]:
    """Limit the time of requests that wait."""
    seconds = None if timeout is None else milliseconds(timeout, "timeout") / 1000
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        raise TimeoutError(f"{what} has not ended after {seconds:g} s and continues; `why` explains its state.") from None


def _object(value: Json) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
