"""The call of a handler: turns its result or exception into an `Outcome`. Nothing durable happens here.

While a handler executes, its name is noted by thread, so that the one that held the interpreter lock can be named.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
import traceback
from collections.abc import Awaitable, Callable, Generator, Iterable
from types import CoroutineType
from typing import Any, Protocol, TypeVar, assert_never

import msgspec

from treadle.kernel.core import Around, intercepted
from treadle.model.approvals import ApprovalRequest, check_request
from treadle.model.clock import MAX_DURATION
from treadle.model.errors import InvalidApproval, NonRetryable
from treadle.model.external import ExternalProductionHandle
from treadle.model.outcomes import (
    AwaitingApproval,
    AwaitingExternal,
    Failed,
    Outcome,
    Paused,
    Problem,
    Produced,
    Released,
    Retry,
    StillWorking,
    Succeeded,
    Waiting,
)
from treadle.model.retry import NO_RETRY, RetryPolicy
from treadle.model.values import Encoded, Json, decode, encode, error_code, error_text, shown, storable, type_name
from treadle.workers.context import Context, RegisteredHandler, Settled
from treadle.workers.exceptions import stored_form
from treadle.workers.signatures import Adapter


def stops_caller(error: BaseException) -> bool:
    """Return whether the exception stops the calling coroutine itself: its task is canceled, or the coroutine is closed.

    Any other exception, including `KeyboardInterrupt` and a `CancelledError` of an awaitable inside, comes from user code.
    """
    if not isinstance(error, asyncio.CancelledError | GeneratorExit):
        return False
    try:
        task = asyncio.current_task()
    except RuntimeError:
        return True
    return task is None or (isinstance(error, asyncio.CancelledError) and task.cancelling() > 0)


def origin(error: BaseException) -> BaseException:
    """Return the exception that user code raised: Python replaces a `StopIteration` that leaves a coroutine."""
    return error.__cause__ if isinstance(error, RuntimeError) and isinstance(error.__cause__, StopIteration) else error


class Raised:
    """An exception of a call in a thread: a future cannot transport each, e.g. not `StopIteration`."""

    __slots__ = ("error",)

    def __init__(self, error: BaseException) -> None:
        self.error = error


def caught(call: Callable[..., Any], *arguments: Any) -> Any:
    """Call user code in a thread; `result_of` returns its result, or raises its exception, in the awaiting coroutine."""
    try:
        return call(*arguments)
    except BaseException as error:
        return Raised(error)


def result_of(returned: Any) -> Any:
    """Return the result of a call made by `caught`, or raise its exception."""
    if isinstance(returned, Raised):
        raise returned.error
    return returned


T = TypeVar("T")

_PREFIX = "handler "
_LONG = 0.5
"""Seconds after which a step of a coroutine is remembered when it is over."""

_now = time.monotonic  # noqa: TID251 - the clock of the lease sidecar
_in_threads: dict[int, str] = {}
"""By the native id of a thread: the last handler that it called."""
_long_steps: dict[int, tuple[str, float, float]] = {}
"""By the native id of an event loop's thread: the handler of its last long step, with the start and the end of the step."""


def noted_in_thread(name: str, call: Callable[..., T], *arguments: Any) -> T:
    """Call a handler in a thread, and note its name."""
    _in_threads[threading.get_native_id()] = name
    return call(*arguments)


def noted(name: str, code: Awaitable[T]) -> Awaitable[T]:
    """Await a handler on the event loop, and note its name with each of its steps that takes long."""
    return _Steps(name, code) if isinstance(code, CoroutineType) else code


class _Steps:
    """Awaits a coroutine step by step."""

    __slots__ = ("_code", "_name")

    def __init__(self, name: str, code: CoroutineType[Any, Any, Any]) -> None:
        self._name = name
        self._code = code

    def __await__(self) -> Generator[Any, Any, Any]:
        step: Callable[[Any], Any] = self._code.send
        value: Any = None
        while True:
            started_at = _now()
            try:
                waits_for = step(value)
            except StopIteration as end:
                return end.value
            finally:
                if (ended_at := _now()) - started_at >= _LONG:
                    _long_steps[threading.get_native_id()] = self._name, started_at, ended_at
            try:
                value = yield waits_for
                step = self._code.send
            except BaseException as error:
                step, value = self._code.throw, error


def task_name(handler: str) -> str:
    """Return the name for the asyncio tasks of a handler."""
    return _PREFIX + handler


def handler_in(thread: int, loop: asyncio.AbstractEventLoop | None, since: float, until: float) -> str | None:
    """Return the handler that ran in the thread with that native id, or else on an event loop, for most of that time.

    Call it soon after that time, in another thread. None: it is not known.
    """
    if thread in _in_threads:
        return _in_threads[thread]
    for name, start, end in _long_steps.values():
        if min(end, until) - max(start, since) > (until - since) / 2:
            return name
    current = None if loop is None else asyncio.current_task(loop)
    name = "" if current is None else current.get_name()
    return name.removeprefix(_PREFIX) if name.startswith(_PREFIX) else None


_TRACEBACK_LIMIT = 16 * 1024


class Executor(Protocol):
    """Runs code that must not run on the event loop."""

    def in_thread(self, handler: RegisteredHandler, arguments: tuple[Any, ...]) -> Awaitable[Any]:
        """Call the handler in a thread. A thread cannot be killed: canceling only stops waiting for it."""

    def in_process(self, handler: RegisteredHandler, context: Context) -> Awaitable[Any]:
        """Call the handler in its own process; canceling kills the process."""

    def abandoned(self, names: Iterable[str]) -> int:
        """Return how many threads still run those handlers after they were canceled: their slots are taken."""

    def close(self) -> None:
        """Accept no more calls; a call that cannot be stopped runs to its end."""


async def call(handler: RegisteredHandler, context: Context, executor: Executor) -> Outcome:
    """Run the handler once. Only `CancelledError` is raised; everything else becomes an outcome."""
    result = await attempt_handler(handler, context, executor)
    outcome = outcome_of(result) if isinstance(result, Settled) else result
    if isinstance(outcome, Succeeded) and not isinstance(outcome.result, dict):
        return Succeeded(decode(encode(outcome.result)))  # type: ignore[unreachable]
    return outcome


async def attempt_handler(handler: RegisteredHandler, context: Context, executor: Executor) -> Outcome | Settled:
    """Run the handler once, as `call` does; its result may be text. The engine's own handlers may settle their tasks themselves."""
    task = context.task
    timeout_for = task.timeout_for if task.timeout_for is not None else handler.timeout_for
    policy = handler.retry if task.policy is None else NO_RETRY
    now = task.claimed_at or 0
    if task.deadline_at is not None:
        remaining = max(task.deadline_at - now, 1)
        timeout_for = remaining if timeout_for is None else min(timeout_for, remaining)
    try:
        if timeout_for is None:
            returned = await _invoke(handler, context, executor)
            return returned if isinstance(returned, Settled) else outcome_of(returned)
        try:
            async with asyncio.timeout(timeout_for / 1000) as limit:
                returned = await _invoke(handler, context, executor)
        except TimeoutError as error:
            if not limit.expired():
                return outcome_of_error(error, policy=policy)
            context.cancel()
            return _timed_out(context, timeout_for)
        return returned if isinstance(returned, Settled) else outcome_of(returned)
    except BaseException as error:
        if not stops_caller(error):
            return outcome_of_error(error, policy=policy)
        context.cancel()
        raise


def _timed_out(context: Context, timeout_for: int) -> Outcome:
    task = context.task
    if task.deadline_at is not None and (task.claimed_at or 0) + timeout_for >= task.deadline_at:
        return Failed(Problem("deadline_exceeded", "The task's deadline passed while it was running; its handler was stopped."))
    message = f"The attempt took longer than {timeout_for / 1000:g} s and was stopped."
    return Retry(Problem("timeout", message, exception=stored_form(TimeoutError())))


def intercepted_handler(handler: RegisteredHandler, around: Around) -> RegisteredHandler:
    """Return the handler inside of its interceptors."""

    async def execute(context: Context, executor: Executor, _: RegisteredHandler) -> Any:
        return await intercepted(around, "handler", context, lambda context: _invoke(handler, context, executor))

    return msgspec.structs.replace(handler, executes=execute)


async def _invoke(handler: RegisteredHandler, context: Context, executor: Executor) -> Any:
    if handler.isolation == "process" and handler.executes is None:
        return await executor.in_process(handler, context)
    if handler.executes is not None:
        returned = await handler.executes(context, executor, handler)
    else:
        payload = context.task.payload if isinstance(handler.call, Adapter) else decode(context.task.payload)
        arguments = (payload, context)[: handler.arguments]
        if handler.isolation == "thread":
            return await executor.in_thread(handler, arguments)
        returned = await noted(handler.name, handler.call(*arguments))
    context._check_awaited()
    return returned


def outcome_of(returned: Any) -> Outcome:
    """Return the outcome for a handler's return value (D1). Its parts are plain values, or encoded before they are stored."""
    if returned is None:
        return Succeeded()
    if type(returned) is dict:
        return Succeeded(returned)
    try:
        return _outcome_of(returned)
    except Exception as error:  # attributes of the returned object may raise anything
        message = f"The handler returned a {type_name(returned)} that cannot be read: {error_text(error)}"
        return Failed(Problem("unexpected_result", message, type_name(error)))


def _outcome_of(returned: Any) -> Outcome:
    if isinstance(returned, dict | Encoded):
        return Succeeded(returned)  # type: ignore[arg-type]  # text is stored as it is
    if isinstance(returned, Succeeded | Retry | Failed | Waiting | AwaitingApproval | Paused | Released):
        return _checked(returned)
    if isinstance(returned, AwaitingExternal | StillWorking | Produced):
        return returned  # only `specialists` creates these, after validation
    if isinstance(returned, ExternalProductionHandle):
        message = (
            "A handler returned an ExternalProductionHandle; only specialists, which have a poll, may: `engine.specialist(...)`."
        )
        return Failed(Problem("poll_not_supported", message))
    kind = type_name(returned)
    if inspect.iscoroutine(returned):
        returned.close()
    return Failed(Problem("unexpected_result", f"The handler returned a {kind}; it must return a dict, None or an outcome.", kind))


def _checked(outcome: Outcome) -> Outcome:
    """Return the outcome made of plain values, or a failure if its contents are invalid."""
    try:
        return _plain(outcome)
    except _Wrong as wrong:
        kind = type_name(outcome)
        return Failed(Problem("unexpected_result", f"The handler returned an invalid {kind}: {wrong}.", kind))


class _Wrong(Exception):
    """A part of an outcome is invalid."""


def _plain(outcome: Outcome) -> Outcome:
    match outcome:
        case Succeeded(result):
            if not isinstance(result, dict):
                raise _Wrong(f"Succeeded takes a dict, not a {type_name(result)}")
            return Succeeded(result)
        case Retry(problem, after_for):
            return Retry(_plain_problem(problem), None if after_for is None else _plain_duration(after_for))
        case Failed(problem):
            return Failed(_plain_problem(problem))
        case Waiting(wait_for, checkpoint):
            return Waiting(_plain_duration(wait_for), checkpoint)
        case AwaitingApproval(request, checkpoint):
            return AwaitingApproval(_plain_request(request), checkpoint)
        case AwaitingExternal() | StillWorking() | Produced():
            return outcome
        case Paused(reason):
            return Paused(_plain_reason(reason))
        case Released(reason):
            return Released(_plain_reason(reason))
        case _:
            assert_never(outcome)


def _plain_reason(reason: object) -> str:
    if not isinstance(reason, str):
        raise _Wrong(f"a reason is text, not a {type_name(reason)}")
    return storable(reason)


def _plain_problem(problem: object) -> Problem:
    if not isinstance(problem, Problem):
        raise _Wrong(f"it takes a Problem(code, message), not a {type_name(problem)}")
    optional: tuple[object, ...] = (problem.type, problem.traceback)
    texts: tuple[object, ...] = (problem.code, problem.message, *(text for text in optional if text is not None))
    if not all(isinstance(text, str) for text in texts):
        raise _Wrong("the parts of a Problem are text")
    return problem.storable()


def _plain_request(request: object) -> ApprovalRequest:
    if not isinstance(request, ApprovalRequest):
        raise _Wrong(f"it takes an ApprovalRequest, not a {type_name(request)}")
    try:
        return check_request(request)
    except InvalidApproval as error:
        raise _Wrong(str(error).rstrip(".")) from None


def _plain_duration(duration_for: object) -> int:
    if type(duration_for) is not int or not 0 <= duration_for <= MAX_DURATION:
        raise _Wrong(f"it takes whole milliseconds from 0 to a century, not {shown(duration_for)}")
    return duration_for


def outcome_of_error(
    error: BaseException, default_code: str = "handler_error", *, policy: RetryPolicy = NO_RETRY
) -> Retry | Failed:
    """Return the outcome for an exception that a handler raised; one that is not Treadle's gets the default code.

    The policy's `should_retry` decides about the exception itself; everything else in the policy applies to the outcome.
    """
    error = origin(error)
    kind, message, code = type_name(error), error_text(error), error_code(error, default_code)
    is_key = isinstance(error, KeyError) and type(error).__str__ is KeyError.__str__
    if message != kind and (is_key or not isinstance(error, Exception)):
        message = f"{kind}: {message}"  # its text is only the key, or only an exit code
    problem = Problem(code, message, kind, _trace_of(error), _form_of(error))
    if isinstance(error, NonRetryable):
        return Failed(problem)
    refusal = policy.refusal_in_code(error)
    return Retry(problem) if refusal is None else Failed(problem.unretried(refusal))


def _form_of(error: BaseException) -> dict[str, Json] | None:
    try:
        return stored_form(error)
    except Exception:  # an exception whose class replaces its attributes
        return None


def _trace_of(error: BaseException) -> str | None:
    try:
        return storable("".join(traceback.format_exception(error))[-_TRACEBACK_LIMIT:])
    except Exception:  # an exception that cannot be formatted
        return None
