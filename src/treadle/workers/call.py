"""The call of a handler: turns its result or exception into an `Outcome`. Nothing durable happens here."""

from __future__ import annotations

import asyncio
import inspect
import traceback
from collections.abc import Awaitable, Iterable
from typing import Any, Protocol, assert_never

from treadle.model.approvals import ApprovalRequest, check_request
from treadle.model.clock import LONGEST_FOR
from treadle.model.errors import InvalidApproval, NonRetryable, TreadleError
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
from treadle.model.values import decode
from treadle.workers.context import Context
from treadle.workers.handlers import Handler, Settled

_TRACEBACK_LIMIT = 16 * 1024


class Executor(Protocol):
    """Runs code that must not run on the event loop."""

    def in_thread(self, handler: Handler, arguments: tuple[Any, ...]) -> Awaitable[Any]:
        """Call the handler in a thread. A thread cannot be killed: canceling only stops waiting for it."""

    def in_process(self, handler: Handler, context: Context) -> Awaitable[Any]:
        """Call the handler in its own process; canceling kills the process."""

    def abandoned(self, names: Iterable[str]) -> int:
        """Return how many threads still run those handlers after they were canceled: their slots are taken."""


async def call(handler: Handler, context: Context, executor: Executor) -> Outcome:
    """Run the handler once. Only `CancelledError` is raised; everything else becomes an outcome."""
    result = await attempt_handler(handler, context, executor)
    return outcome_of(result) if isinstance(result, Settled) else result


async def attempt_handler(handler: Handler, context: Context, executor: Executor) -> Outcome | Settled:
    """Run the handler once, as `call` does; the engine's own handlers may also settle their tasks themselves."""
    task = context.task
    timeout_for = task.timeout_for if task.timeout_for is not None else handler.timeout_for
    now = task.claimed_at or 0
    if task.deadline_at is not None:
        left = max(task.deadline_at - now, 1)
        timeout_for = left if timeout_for is None else min(timeout_for, left)
    try:
        if timeout_for is None:
            returned = await _invoke(handler, context, executor)
            return returned if isinstance(returned, Settled) else outcome_of(returned)
        try:
            async with asyncio.timeout(timeout_for / 1000) as limit:
                returned = await _invoke(handler, context, executor)
        except TimeoutError as error:
            if not limit.expired():
                return outcome_of_error(error)
            context.cancel()
            return _timed_out(context, timeout_for)
        return returned if isinstance(returned, Settled) else outcome_of(returned)
    except asyncio.CancelledError as error:
        runner = asyncio.current_task()
        if runner is not None and not runner.cancelling():  # not stopped by us: an awaitable inside the handler was canceled
            return outcome_of_error(error)
        context.cancel()
        raise
    except (Exception, SystemExit) as error:
        return outcome_of_error(error)


def _timed_out(context: Context, timeout_for: int) -> Outcome:
    task = context.task
    if task.deadline_at is not None and (task.claimed_at or 0) + timeout_for >= task.deadline_at:
        return Failed(Problem("deadline_exceeded", "The task's deadline passed while it was running; its handler was stopped."))
    return Retry(Problem("timeout", f"The attempt took longer than {timeout_for / 1000:g} s and was stopped."))


async def _invoke(handler: Handler, context: Context, executor: Executor) -> Any:
    if handler.executes is not None:
        return await handler.executes(context, executor, handler)
    if handler.isolation == "process":
        return await executor.in_process(handler, context)
    arguments = (decode(context.task.payload), context)[: handler.arguments]
    if handler.isolation == "thread":
        return await executor.in_thread(handler, arguments)
    return await handler.call(*arguments)


def outcome_of(returned: Any) -> Outcome:
    """Return the outcome for a handler's return value (D1)."""
    if returned is None:
        return Succeeded()
    if isinstance(returned, dict):
        return Succeeded(returned)
    if isinstance(returned, Succeeded | Retry | Failed | Waiting | AwaitingApproval | Paused | Released):
        return _checked(returned)
    if isinstance(returned, AwaitingExternal | StillWorking | Produced):
        return returned  # only `specialist_jobs` creates these, after validation
    if isinstance(returned, ExternalProductionHandle):
        message = (
            "A handler returned an ExternalProductionHandle; only specialists, which have a poll, may: `engine.specialist(...)`."
        )
        return Failed(Problem("poll_not_supported", message))
    kind = type(returned).__name__
    if inspect.iscoroutine(returned):
        returned.close()
    return Failed(Problem("unexpected_result", f"The handler returned a {kind}; it must return a dict, None or an outcome.", kind))


def _checked(outcome: Outcome) -> Outcome:
    """Return the outcome, or a failure if its contents are invalid."""
    match outcome:
        case Succeeded(result):
            wrong = None if isinstance(result, dict) else f"Succeeded takes a dict, not a {type(result).__name__}"
        case Retry(problem, after_for):
            wrong = _wrong_problem(problem) or (None if after_for is None else _wrong_duration(after_for))
        case Failed(problem):
            wrong = _wrong_problem(problem)
        case Waiting(wait_for):
            wrong = _wrong_duration(wait_for)
        case AwaitingApproval(request):
            wrong = _wrong_request(request)
        case AwaitingExternal() | StillWorking() | Produced():
            wrong = None
        case Paused(reason) | Released(reason):
            wrong = None if isinstance(reason, str) else f"a reason is text, not a {type(reason).__name__}"
        case _:
            assert_never(outcome)
    if wrong is None:
        return outcome
    kind = type(outcome).__name__
    return Failed(Problem("unexpected_result", f"The handler returned an invalid {kind}: {wrong}.", kind))


def _wrong_problem(problem: object) -> str | None:
    if not isinstance(problem, Problem):
        return f"it takes a Problem(code, message), not a {type(problem).__name__}"
    texts: tuple[object, ...] = (problem.code, problem.message, problem.type or "", problem.traceback or "")
    if not all(isinstance(text, str) for text in texts):
        return "the parts of a Problem are text"
    return None


def _wrong_request(request: object) -> str | None:
    if not isinstance(request, ApprovalRequest):
        return f"it takes an ApprovalRequest, not a {type(request).__name__}"
    try:
        check_request(request)
    except InvalidApproval as error:
        return str(error).rstrip(".")
    return None


def _wrong_duration(duration_for: object) -> str | None:
    if type(duration_for) is not int or not 0 <= duration_for <= LONGEST_FOR:
        return f"it takes whole milliseconds from 0 to a century, not {duration_for!r}"
    return None


def outcome_of_error(error: BaseException, default_code: str = "handler_error") -> Retry | Failed:
    """Return the outcome for an exception that a handler raised; one that is not Treadle's gets the default code."""
    kind = type(error).__name__
    trace = "".join(traceback.format_exception(error))[-_TRACEBACK_LIMIT:]
    message = str(error) or kind
    if isinstance(error, KeyError) and type(error).__str__ is KeyError.__str__:
        message = f"{kind}: {message}"  # its text is only the key
    if isinstance(error, NonRetryable):
        return Failed(Problem(error.error_code, message, kind, trace))
    code = error.code if isinstance(error, TreadleError) else default_code
    return Retry(Problem(code, message, kind, trace))
