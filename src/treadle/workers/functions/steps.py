"""Steps of a function: code that is executed once, and whose recorded result every replay returns."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Generator
from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING, Any

from treadle.kernel.functions.steps import STEP, Recorded, completed_body, fold_text, make_step, step_id
from treadle.model.arguments import call_text
from treadle.model.conversion import Converter
from treadle.model.errors import InvalidInput, InvalidPayload, NonRetryable
from treadle.model.outcomes import Problem, Retry
from treadle.model.retry import NO_RETRY, RetryPolicy
from treadle.model.runs import Step
from treadle.model.states import StepState
from treadle.model.values import decode, encode
from treadle.workers.call import outcome_of_error
from treadle.workers.functions.branches import Branch
from treadle.workers.functions.cleanup import interrupted, is_interrupted
from treadle.workers.functions.errors import error_of
from treadle.workers.functions.waits import Wait
from treadle.workers.handlers import Handler
from treadle.workers.injection import is_async
from treadle.workers.interruptions import stops_caller
from treadle.workers.signatures import result_converter

if TYPE_CHECKING:
    from treadle.workers.functions.driver import Driver

_COROUTINE = inspect.CO_COROUTINE
_TRACEBACK = 8 * 1024
"""Characters of a traceback that the step's row keeps: its end, which names the cause."""
_SHORT = {None: "null", True: "true", False: "false"}
_PLAIN = (type(None), bool, int, float, str)


class StepOperation:
    """`ctx.step(...)`. Nothing happens until it is awaited or gathered."""

    __slots__ = ("args", "converter", "driver", "fn", "key", "kwargs", "limit_key", "name", "retry", "timeout_for")
    kind = STEP

    def __init__(
        self,
        driver: Driver,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        name: str,
        key: str | None,
        retry: RetryPolicy | None,
        timeout_for: int | None,
        limit_key: str | None,
    ) -> None:
        self.limit_key = limit_key
        self.driver, self.fn, self.args, self.kwargs = driver, fn, args, kwargs
        self.name, self.key, self.retry, self.timeout_for = name, key, retry, timeout_for
        self.converter = result_converter(fn)
        """Converts a result whose type is annotated; None for any JSON."""

    def __await__(self) -> Generator[Any, None, Any]:
        return self.run(self.driver.branches.enter()).__await__()

    async def run(self, branch: Branch) -> Any:
        driver = self.driver
        if driver.execution.held:
            await driver.execution.wait_while_held()
        name = driver.journal.step_name(branch, self.name, self.key)
        place, recorded = driver.journal.reach(branch, STEP, name)
        if (recorded is not None or driver.execution.cancel is not None) and is_interrupted(driver, branch, recorded):
            await self._interrupt(branch, recorded or driver.journal.new_step(place, STEP, name, StepState.PENDING))
        if recorded is not None:
            if recorded.state == StepState.COMPLETED:
                return self._loaded(recorded.value)
            if (error := error_of(recorded)) is not None:
                raise error
            await self._wait_for_retry(branch, recorded)
        about = call_text(self.fn, self.args, self.kwargs)
        self.fn = driver.execution.runtime.wire(self.fn)
        while True:
            if self.limit_key is not None:
                await driver.permits.acquire(self.limit_key)
            branch.busy, branch.place = name, place
            began_at = driver.start(self.kind, place, name, recorded, about)
            try:
                code = getattr(self.fn, "__code__", None)
                if self.timeout_for is None and code is not None and code.co_flags & _COROUTINE:
                    value = await self.fn(*self.args, **self.kwargs)  # the fast path of most steps
                else:
                    value = await self._call()
                value = value if self.converter is None else self._converted(value, self.converter)
                text = _SHORT.get(value) if value is None or type(value) is bool else None
                if text is None:
                    text = self._encoded(value)
            except BaseException as error:
                if self._is_stopped_by(error):
                    raise
                driver.execution.executing.pop(place, None)
                await self._end_streams(branch)
                recorded = await self._failed(branch, place, name, recorded, error, began_at, about)
                continue
            finally:
                branch.busy = None
                driver.execution.executing.pop(place, None)
            break
        if self.limit_key is not None:
            driver.permits.release(branch)
        streamed = branch.streams is not None
        if streamed:
            await self._end_streams(branch)
        await driver.recorder.checkpoint(branch, self._completed(branch, place, name, recorded, text, value, began_at, about))
        if streamed:
            driver.execution.runtime.committer.streamed()
        return self._loaded(value if type(value) in _PLAIN else decode(text))

    async def _end_streams(self, branch: Branch) -> None:
        """Commit the step's last entries of streams with the step."""
        if branch.streams is not None:
            rows = await self.driver.streams.end_step(branch)
            branch.next_unit().rows += rows

    async def _interrupt(self, branch: Branch, recorded: Recorded) -> None:
        """Record that the run is canceled before the step has ended, and raise `Canceled`."""
        error = error_of(interrupted(self.driver, branch, recorded))
        await self.driver.recorder.commit_decided(branch)
        assert error is not None
        raise error

    def _loaded(self, value: Any) -> Any:
        return value if self.converter is None else self.converter.load(value)

    def _converted(self, value: Any, converter: Converter) -> Any:
        try:
            return converter.dump(value)
        except InvalidPayload as error:
            raise NonRetryable(f"The step's result does not match its annotation: {error}", "invalid_result") from None

    def _encoded(self, value: Any) -> str:
        try:
            return encode(value, "result", self.driver.execution.runtime.payload_limit)
        except InvalidInput as error:
            raise NonRetryable(f"The step's result cannot be stored: {error}", "invalid_result") from None

    def _is_stopped_by(self, error: BaseException) -> bool:
        """Return whether the branch itself is stopped; otherwise the code of the step raised the error."""
        if isinstance(error, asyncio.CancelledError):
            return self.driver.execution.closed or self.driver.branches.is_abandoned()
        return stops_caller(error)

    async def _call(self) -> Any:
        if self.timeout_for is None:
            return await self._invoke()
        try:
            async with asyncio.timeout(self.timeout_for / 1000) as limit:
                return await self._invoke()
        except TimeoutError:
            if not limit.expired():
                raise
            raise _TimedOut(f"The attempt took longer than {self.timeout_for / 1000:g} s and was stopped.") from None

    async def _invoke(self) -> Any:
        fn, execution = self.fn, self.driver.execution
        if is_async(fn):
            return await fn(*self.args, **self.kwargs)
        call = partial(copy_context().run, fn, *self.args, **self.kwargs)
        value = await execution.runtime.executor.in_thread(Handler(execution.function.lane_name, call, 0, "thread"), ())
        return await value if inspect.isawaitable(value) else value

    def _completed(
        self, branch: Branch, place: str, name: str, recorded: Recorded | None, text: str, value: Any, began_at: int, about: str
    ) -> Step:
        execution, journal = self.driver.execution, self.driver.journal
        value_store = execution.runtime.value_store
        if type(value) not in _PLAIN or len(text) > 1000:
            text, blobs = fold_text(text, value, execution.root_id, value_store)
            if blobs:
                branch.next_unit().rows += blobs
        redo = recorded.redo if recorded is not None else journal.redo(place)
        return Step(
            id=step_id(execution.run_id, place, redo) if redo else journal.ids.at(place),
            run_id=execution.run_id,
            parent_id=None,
            ordinal=journal.count if recorded is None else recorded.ordinal,
            kind=STEP,
            name=name,
            facet=None,
            state=StepState.COMPLETED,
            body=value_store.seal(
                completed_body(place, text, began_at, about, redo, None if recorded is None else recorded.more or None)
            ),
        )

    async def _wait_for_retry(self, branch: Branch, recorded: Recorded) -> None:
        wait = Wait(branch, recorded, wake_at=recorded.wake_at)
        self.driver.inbox.register(wait)
        await self.driver.inbox.block(wait)

    async def _failed(
        self, branch: Branch, place: str, name: str, recorded: Recorded | None, error: BaseException, began_at: int, about: str
    ) -> Recorded:
        """Record a failed attempt and wait for the next one; raises `StepFailed` after the last."""
        execution, journal, recorder = self.driver.execution, self.driver.journal, self.driver.recorder
        if branch.dropped:
            raise asyncio.CancelledError
        if self.limit_key is not None:
            self.driver.permits.release(branch)
        outcome = outcome_of_error(error)
        problem = outcome.problem
        if isinstance(error, _TimedOut):
            problem = Problem("timeout", str(error))
        elif problem.code == "handler_error":
            problem = Problem("step_error", problem.message, problem.type, problem.traceback)
        if recorded is None:
            recorded = journal.new_step(place, self.kind, name, StepState.PENDING)
        recorded.failures += 1
        recorded.began_at, recorded.ended_at = began_at, execution.now()
        recorded.about = about or None
        recorded.error = problem.as_json()
        if problem.traceback is not None:
            recorded.error["traceback"] = problem.traceback[-_TRACEBACK:]
        policy = self.retry or NO_RETRY
        jitter = execution.runtime.ids.random() if policy.jitter else 0.0
        delay_for = policy.delay_for(recorded.failures, jitter) if isinstance(outcome, Retry) else None
        recorded.state = StepState.PENDING
        if delay_for is None:
            recorded.state, recorded.wake_at = StepState.FAILED, None
            await recorder.checkpoint(branch, make_step(execution.run_id, recorded, execution.runtime.value_store))
            failed = error_of(recorded)
            assert failed is not None
            raise failed from error
        recorded.wake_at = execution.now() + delay_for
        journal.write(recorded, recorder.share(branch))
        branch.busy = None
        await self._wait_for_retry(branch, recorded)
        if execution.held:
            await execution.wait_while_held()
        return recorded


class _TimedOut(TimeoutError):
    """The step's own timeout."""
