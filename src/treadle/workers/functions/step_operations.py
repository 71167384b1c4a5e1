"""Steps and effects of a function: code that is executed once, and whose recorded result every replay returns.

An effect is recorded before it happens, so that a takeover knows which outcomes are unknown (D22). The outcome is committed with
the step. An effect that began and has not ended therefore belongs to a process that died, or ended without an answer: it is
repeated under the key of the next attempt. So is an effect that ended as unknown, if the function catches the error and requests
the same effect again, at whatever place: it is the same effect, with the same dedupe key.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from contextvars import copy_context
from functools import partial
from typing import Any, NamedTuple, NoReturn

import msgspec

from treadle.kernel.core import intercepted
from treadle.kernel.effects.decide import (
    ASK,
    REPEAT,
    UNRESOLVED,
    Begin,
    Effect,
    failed,
    is_definite,
    making,
    no_response,
    stable_hash,
    succeeded,
    succeeded_without_response,
    unrepeated,
)
from treadle.kernel.functions import steps
from treadle.kernel.functions.steps import EFFECT, STEP, Recorded, folded, make_step, question_place
from treadle.kernel.queue.decide import next_attempt
from treadle.kernel.store.process import failpoint
from treadle.model.approvals import ApprovalRequest
from treadle.model.errors import EffectUnknown, InvalidInput, InvalidPayload, NonRetryable, StepFailed, TreadleError
from treadle.model.names import APPROVAL, QueueKey
from treadle.model.outcomes import Problem, Retry
from treadle.model.retry import NO_RETRY, RetryPolicy
from treadle.model.runs import Step
from treadle.model.states import StepState
from treadle.model.values import Json, arguments_text, call_text, decode, encode, error_text, type_name
from treadle.workers.call import outcome_of_error, stops_caller
from treadle.workers.context import RegisteredHandler
from treadle.workers.functions.driver import Driver
from treadle.workers.functions.execution import FunctionBranch
from treadle.workers.functions.inbox import Wait
from treadle.workers.functions.journal import UNKNOWN_OUTCOME, error_of, failure_of
from treadle.workers.functions.wait_operations import CallOperation, Operation, interrupted, is_interrupted
from treadle.workers.interceptors import StepCall
from treadle.workers.signatures import is_async, result_converter

_RESPONSE = "response"
_CONTEXT = {"action", "request", "attempt", "dedupe_key", "cause"}
_TRACEBACK = 8 * 1024
"""Characters of a traceback that the step's row keeps: its end, which names the cause."""


class StepOperation(Operation):
    """`ctx.step(...)`."""

    __slots__ = ("args", "converter", "fn", "kwargs", "limit_key", "retry", "timeout_for")

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
        kind: str = STEP,
    ) -> None:
        super().__init__(driver, kind, name, key)
        self.fn, self.args, self.kwargs = fn, args, kwargs
        self.retry, self.timeout_for, self.limit_key = retry, timeout_for, limit_key
        self.converter = result_converter(fn)
        """Converts a result whose type is annotated; None for any JSON."""

    async def run(self, branch: FunctionBranch) -> Any:
        driver = self.driver
        await driver.execution.wait_while_held()
        name = driver.journal.step_name(branch, self.name, self.key)
        place, recorded = driver.journal.next_step(branch, STEP, name)
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
                await driver.semaphore_slots.acquire(self.limit_key)
            began_at, value, error = await self._attempt(branch, place, name, recorded, about)
            if error is None:
                break
            recorded = await self._failed(branch, place, name, recorded, error, began_at, about)
        streamed = branch.streams is not None
        if streamed:
            await self._end_streams(branch)
        await driver.recorder.checkpoint(branch, self._completed(branch, place, name, recorded, value, began_at, about))
        if streamed:
            driver.execution.runtime.committer.streamed()
        return self._loaded(value)

    async def _attempt(
        self, branch: FunctionBranch, place: str, name: str, recorded: Recorded | None, about: str
    ) -> tuple[int, Any, BaseException | None]:
        """Execute the code once, and give its slot back; return when it began, and its value or the error that it raised."""
        execution = self.driver.execution
        value: Any = None
        error: BaseException | None = None
        branch.busy, branch.place = name, place
        began_at = self.driver.journal.start(self.kind, place, name, recorded, about)
        try:
            value = self._stored(await self._call())
        except BaseException as raised:
            if self._is_stopped_by(raised):
                raise
            error = raised
        finally:
            branch.busy = None
            execution.executing.pop(place, None)
        if branch.dropped:
            raise asyncio.CancelledError
        if self.limit_key is not None:
            self.driver.semaphore_slots.release(branch)
        return began_at, value, error

    async def _end_streams(self, branch: FunctionBranch) -> None:
        """Commit the step's last entries of streams with the step."""
        if branch.streams is not None:
            rows = await self.driver.streams.end_step(branch)
            branch.next_unit().rows += rows

    async def _interrupt(self, branch: FunctionBranch, recorded: Recorded) -> None:
        """Record that the run is canceled before the step has ended, and raise `Canceled`."""
        interrupted(self.driver, branch, recorded)
        await self.driver.recorder.commit_decided(branch)
        raise failure_of(recorded)

    def _loaded(self, value: Any) -> Any:
        try:
            return value if self.converter is None else self.converter.load(value)
        except InvalidPayload as error:
            what = f"The recorded result of the {self.kind} {self.name}"
            raise InvalidPayload(f"{what} does not match its annotation: {error}") from None

    def _stored(self, value: Any) -> Json:
        """Return the result as a replay reads it."""
        try:
            value = value if self.converter is None else self.converter.dump(value)
        except InvalidPayload as error:
            raise NonRetryable(f"The step's result does not match its annotation: {error}", "invalid_result") from None
        try:
            return decode(encode(value, "result", self.driver.execution.runtime.payload_limit))
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
        execution = self.driver.execution
        if "step" not in execution.runtime.around:
            return await self._execute()
        call = StepCall(execution.run_id, execution.function.name, self.name, self.kind, execution.task.trace_id)
        return await intercepted(execution.runtime.around, "step", call, lambda _: self._execute())

    async def _execute(self) -> Any:
        fn, execution = self.fn, self.driver.execution
        if is_async(fn):
            return await fn(*self.args, **self.kwargs)
        call = partial(copy_context().run, execution.runtime.wrap_in_thread(fn), *self.args, **self.kwargs)
        value = await execution.runtime.executor.in_thread(RegisteredHandler(execution.function.queue_name, call, 0, "thread"), ())
        return await value if inspect.isawaitable(value) else value

    def _completed(
        self, branch: FunctionBranch, place: str, name: str, before: Recorded | None, value: Json, began_at: int, about: str
    ) -> Step:
        execution = self.driver.execution
        recorded = self.driver.journal.new_step(place, STEP, name, StepState.COMPLETED)
        if before is not None:
            recorded.redo, recorded.id, recorded.ordinal, recorded.more = before.redo, before.id, before.ordinal, before.more
        recorded.value, recorded.began_at, recorded.about = value, began_at, about or None
        step, blobs = folded(execution.run_id, recorded, execution.root_id, execution.runtime.value_store, checked=True)
        if blobs:
            branch.next_unit().rows += blobs
        return step

    async def _wait_for_retry(self, branch: FunctionBranch, recorded: Recorded) -> None:
        wait = Wait(branch, recorded, wake_at=recorded.wake_at)
        self.driver.inbox.register(wait)
        await self.driver.inbox.block(wait)

    async def _failed(
        self,
        branch: FunctionBranch,
        place: str,
        name: str,
        recorded: Recorded | None,
        error: BaseException,
        began_at: int,
        about: str,
    ) -> Recorded:
        """Record a failed attempt and wait for the next one; raises `StepFailed` after the last."""
        execution, journal, recorder = self.driver.execution, self.driver.journal, self.driver.recorder
        await self._end_streams(branch)
        policy = self.retry or NO_RETRY
        outcome = outcome_of_error(error, "step_error", policy=policy)
        problem = outcome.problem
        if isinstance(error, _TimedOut):
            problem = Problem("timeout", problem.message, exception=problem.exception)
        delay_for: int | Problem = problem
        if isinstance(outcome, Retry):
            jitter = execution.runtime.ids.random() if policy.jitter else 0.0
            delay_for = next_attempt(policy, problem, 1 if recorded is None else recorded.failures + 1, jitter)
        if isinstance(delay_for, Problem):
            problem = delay_for
        if recorded is None:
            recorded = journal.new_step(place, self.kind, name, StepState.PENDING)
        recorded.failures += 1
        recorded.began_at, recorded.ended_at = began_at, execution.now()
        recorded.about = about or None
        recorded.error = problem.as_json()
        if problem.traceback is not None:
            recorded.error["traceback"] = problem.traceback[-_TRACEBACK:]
        recorded.state = StepState.PENDING
        if isinstance(delay_for, Problem):
            recorded.state, recorded.wake_at = StepState.FAILED, None
            await recorder.checkpoint(branch, make_step(execution.run_id, recorded, execution.runtime.value_store))
            raise failure_of(recorded) from error
        recorded.wake_at = execution.now() + delay_for
        journal.write(recorded, recorder.share(branch))
        await self._wait_for_retry(branch, recorded)
        await execution.wait_while_held()
        return recorded


class _TimedOut(TimeoutError):
    """The step's own timeout."""


class KnownResponse(NamedTuple):
    """The response of an effect that a person found to have happened."""

    response: object


class EffectOperation(StepOperation):
    """`ctx.effect(...)`."""

    __slots__ = ("action", "on_unknown", "request", "unknown")

    def __init__(
        self,
        driver: Driver,
        action: str,
        fn: Callable[..., Any],
        request: Json,
        key: str | None,
        retry: RetryPolicy | None,
        timeout_for: int | None,
        unknown: tuple[type[BaseException], ...],
        on_unknown: str,
        limit_key: str | None,
    ) -> None:
        super().__init__(driver, fn, (), {}, action, key, retry, timeout_for, limit_key, EFFECT)
        self.action, self.request, self.unknown, self.on_unknown = action, request, unknown, on_unknown

    async def run(self, branch: FunctionBranch) -> Any:
        execution, journal = self.driver.execution, self.driver.journal
        await execution.wait_while_held()
        what = (self.action, stable_hash(self.request, "request"), self.key)
        name = journal.step_name(branch, self.name, self.key)
        place, recorded = journal.next_step(branch, EFFECT, name)
        request = self.request if isinstance(self.request, dict) else {"request": self.request}
        about = "" if self.request is None else arguments_text(request)
        first = journal.ids.at(place) if recorded is None or recorded.of is None else recorded.of
        lost = recorded is not None and recorded.state == StepState.RUNNING
        if recorded is not None:
            journal.history.take_questions(place, recorded.attempt - lost)
        if is_interrupted(self.driver, branch, recorded):
            step = recorded or journal.new_step(place, EFFECT, name, StepState.PENDING)
            step.in_doubt = step.in_doubt or lost
            journal.history.take_questions(place, step.attempt)
            if step.in_doubt:
                journal.note_unknown(what, first, place, step.attempt)
            await self._interrupt(branch, step)
        if recorded is None:
            recorded = journal.new_step(place, EFFECT, name, StepState.RUNNING)
            recorded.about = about or None
            first = self._repeat(recorded, what)
        elif recorded.state == StepState.COMPLETED:
            return self._loaded(recorded.value)
        elif (error := error_of(recorded)) is not None:
            if recorded.in_doubt:
                journal.note_unknown(what, first, place, recorded.attempt)
            raise error
        elif recorded.state == StepState.PENDING:
            await self._wait_for_retry(branch, recorded)
        else:
            recorded.in_doubt = True
        effect = Effect.of(execution.run_id, first, execution.root_id, self.action, self.request, held_by=execution.task.id)
        if lost and self.on_unknown != REPEAT:
            await self.driver.recorder.log_if_unlogged(Begin(effect, recorded.attempt))
            cause = "its process ended before the answer."
            if (outcome := await self._resolve(branch, effect, recorded, cause, what, first)) is not None:
                return await self._succeeded(branch, Begin(effect, recorded.attempt), recorded, outcome.response)
        while True:
            if self.limit_key is not None:
                await self.driver.semaphore_slots.acquire(self.limit_key)
            begin = await self._begin(branch, recorded, effect)
            with making(begin.keys):
                began_at, value, error = await self._attempt(branch, place, name, recorded, about)
            recorded.began_at, recorded.ended_at = began_at, execution.now()
            if error is None:
                await self._end_streams(branch)
                failpoint("effect.made")
                return await self._succeeded(branch, begin, recorded, value)
            recorded.in_doubt = not is_definite(error, self.unknown)
            if not recorded.in_doubt:
                branch.next_unit().rows.append(failed(begin, error, execution.runtime.value_store))
            else:
                await self.driver.recorder.log_unknown(*begin.unknown)
                if self.on_unknown != REPEAT:
                    await self._end_streams(branch)
                    cause = f"it raised {type_name(error)}: {error_text(error)}."
                    if (outcome := await self._resolve(branch, effect, recorded, cause, what, first)) is None:
                        continue
                    return await self._succeeded(branch, begin, recorded, outcome.response)
            try:
                recorded = await self._failed(branch, place, name, recorded, error, began_at, about)
            except StepFailed:
                if recorded.in_doubt:
                    journal.note_unknown(what, first, place, recorded.attempt)
                raise

    def _stored(self, value: Any) -> Json:
        """Return the response as it is: the outcome records that it happened, also if it cannot be stored."""
        return value

    async def _resolve(
        self, branch: FunctionBranch, effect: Effect, recorded: Recorded, cause: str, what: tuple[str, str, str | None], first: str
    ) -> KnownResponse | None:
        try:
            return await self._response_known(branch, effect, recorded, cause)
        except EffectUnknown:
            self.driver.journal.note_unknown(what, first, recorded.place, recorded.attempt)
            raise

    def _repeat(self, recorded: Recorded, what: tuple[str, str, str | None]) -> str:
        """Continue the count of attempts if the new step repeats an unknown effect; return the step of the first attempt."""
        journal, place = self.driver.journal, recorded.place
        if (before := journal.history.replaced.get(place)) is not None:
            recorded.of, recorded.in_doubt = before.of, before.in_doubt or before.state == StepState.RUNNING
            recorded.attempt = max(before.attempt, journal.history.begun.get(before.of or journal.ids.at(place), 0))
        elif (unknown := journal.find_unknown(what, place)) is not None:
            recorded.of, recorded.attempt = unknown
            recorded.in_doubt = True
        return recorded.of or journal.ids.at(place)

    async def _begin(self, branch: FunctionBranch, recorded: Recorded, effect: Effect) -> Begin:
        """Commit that the effect is about to happen."""
        driver = self.driver
        begin = Begin(effect, recorded.attempt + 1, UNRESOLVED if recorded.in_doubt else None)
        driver.journal.history.begun[effect.step_id or ""] = begin.attempt
        if recorded.in_doubt:
            await driver.recorder.log_if_unlogged(Begin(effect, recorded.attempt))
        recorded.attempt, recorded.state, recorded.in_doubt = begin.attempt, StepState.RUNNING, False
        recorded.wake_at = None
        unit = branch.next_unit()
        unit.rows += begin.rows
        driver.journal.write(recorded, unit)
        failpoint("effect.before_begin")
        await driver.recorder.commit_decided(branch)
        failpoint("effect.begun")
        return begin

    async def _succeeded(self, branch: FunctionBranch, begin: Begin, recorded: Recorded, value: Any) -> Any:
        """Commit the outcome with the step, and return the value as a replay would."""
        driver, runtime = self.driver, self.driver.execution.runtime
        unit = branch.next_unit()
        try:
            value = value if self.converter is None else self.converter.dump(value)
            rows = succeeded(begin, value, runtime.value_store)
            text = encode(value, "response", runtime.payload_limit)
        except InvalidInput as error:
            unit.rows.append(succeeded_without_response(begin))
            recorded.state = StepState.FAILED
            unstorable = no_response(error)
            recorded.error = {"code": unstorable.error_code, "message": str(unstorable)}
            driver.journal.write(recorded, unit)
            await driver.recorder.commit_decided(branch)
            raise failure_of(recorded) from error
        unit.rows += rows
        recorded.state, recorded.value, recorded.error = StepState.COMPLETED, decode(text), None
        driver.journal.write(recorded, unit)
        await driver.recorder.commit_decided(branch)
        failpoint("effect.recorded")
        return self._loaded(recorded.value)

    async def _response_known(self, branch: FunctionBranch, effect: Effect, recorded: Recorded, cause: str) -> KnownResponse | None:
        """Return the response if a person knows it, or None to repeat the effect; otherwise record and raise `EffectUnknown`.

        The approval has a place below that of its effect, so that steps after the effect keep their places.
        """
        if self.on_unknown != ASK:
            await self._fail_unknown(branch, effect, recorded, cause)
        try:
            decision = await self._ask(branch, effect, recorded, cause)
        except TreadleError as refused:  # denied, expired, or its task was canceled
            await self._fail_unknown(branch, effect, recorded, f"{cause} {refused}")
        context = decision.get("context")
        if not isinstance(context, dict) or _RESPONSE not in context:
            if isinstance(context, dict) and not decision.get("edited") and context.keys() <= _CONTEXT:
                return None
            problem = 'The decision has an edit without the key "response", which has no meaning.'
            await self._fail_unknown(branch, effect, recorded, f"{cause} {problem}")
        converter = self.converter
        try:
            return KnownResponse(context[_RESPONSE] if converter is None else converter.load(context[_RESPONSE]))
        except InvalidPayload as error:
            problem = f"The response in the decision does not match its type: {error}"
            await self._fail_unknown(branch, effect, recorded, f"{cause} {problem}")

    async def _ask(self, branch: FunctionBranch, effect: Effect, recorded: Recorded, cause: str) -> dict[str, Json]:
        driver = self.driver
        task = driver.execution.task
        context: dict[str, Json] = {
            "action": effect.action,
            "request": self.request,
            "attempt": recorded.attempt,
            "dedupe_key": effect.dedupe_key,
            "cause": cause,
        }
        request = ApprovalRequest.of(
            f"Repeat the effect {effect.action}? It is unknown whether it happened. Deny to fail it; if it happened, approve with "
            'its response as an edit: {"response": ...}.',
            context=context,
            edits=True,
        )
        request = msgspec.structs.replace(request, edit_keys=(_RESPONSE,))
        queue = QueueKey(driver.execution.runtime.namespace, APPROVAL, task.task_list, APPROVAL)
        name = f"decide {effect.action}"
        question = CallOperation(driver, queue, request.as_json(), {"priority": task.priority}, kind=steps.ASK, name=name)
        driver.note_begun(question)
        below = FunctionBranch(question_place(recorded.place, recorded.attempt)[:-1], branch)
        try:
            wait = question.begin(below)
            await driver.inbox.block(wait)
        finally:
            if below.pending is not None:
                branch.next_unit().take(below.pending)
        return wait.result()  # type: ignore[no-any-return]

    async def _fail_unknown(self, branch: FunctionBranch, effect: Effect, recorded: Recorded, cause: str) -> NoReturn:
        driver = self.driver
        execution = driver.execution
        error = unrepeated(effect.action, f"treadle effects list --run {execution.run_id}", cause)
        recorded.state, recorded.wake_at, recorded.in_doubt = StepState.FAILED, None, True
        recorded.error = {"code": error.code, "message": str(error), "state": UNKNOWN_OUTCOME}
        await driver.recorder.checkpoint(branch, make_step(execution.run_id, recorded, execution.runtime.value_store))
        raise failure_of(recorded)
