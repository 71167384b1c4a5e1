"""From a handler to an outcome, whatever the handler does."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.limits import BOUND
from tests.workers.harness import context

from treadle.model.errors import InvalidInput, NonRetryable
from treadle.model.outcomes import Failed, Outcome, Paused, Problem, Released, Retry, Succeeded, Waiting
from treadle.workers.call import call
from treadle.workers.context import Context, make_handler
from treadle.workers.executor import SystemExecutor


@pytest.fixture
def executor() -> Iterator[SystemExecutor]:
    made = SystemExecutor(2)
    yield made
    made.close()


async def outcome_of(function: Callable[..., Any], executor: SystemExecutor, ctx: Context | None = None, **options: Any) -> Outcome:
    return await call(make_handler("work", function, **options), ctx or context(), executor)


def returning(value: Any) -> Callable[..., Any]:
    async def handler(payload: Any) -> Any:
        return value

    return handler


def raising(error: BaseException) -> Callable[..., Any]:
    async def handler(payload: Any) -> Any:
        raise error

    return handler


async def hang(payload: Any = None) -> None:
    await asyncio.Event().wait()


async def test_a_dict_is_success_and_none_is_an_empty_one(executor: SystemExecutor) -> None:
    assert await outcome_of(returning({"a": 1}), executor) == Succeeded({"a": 1})
    assert await outcome_of(returning(None), executor) == Succeeded({})


async def test_a_handler_gets_its_payload_and_its_context(executor: SystemExecutor) -> None:
    async def handler(payload: Any, ctx: Context) -> dict[str, Any]:
        return {"payload": payload, "attempt": ctx.attempt, "token": ctx.fencing_token}

    outcome = await outcome_of(handler, executor, context(attempt=3, claim_version=9))
    assert outcome == Succeeded({"payload": {"n": 1}, "attempt": 3, "token": 9})


async def test_a_sync_handler_runs_in_another_thread(executor: SystemExecutor) -> None:
    seen: list[threading.Thread] = []
    assert await outcome_of(lambda payload: seen.append(threading.current_thread()), executor) == Succeeded({})
    assert seen[0] is not threading.current_thread()


@pytest.mark.parametrize(
    "outcome",
    [
        Succeeded({"a": 1}),
        Retry(Problem("later", "not yet"), 500),
        Failed(Problem("no", "never")),
        Waiting(1000, {"cursor": 7}),
        Paused("ask me"),
        Released("not here"),
    ],
)
async def test_an_outcome_returned_by_a_handler_is_used_unchanged(outcome: Outcome, executor: SystemExecutor) -> None:
    assert await outcome_of(returning(outcome), executor) == outcome


@pytest.mark.parametrize("value", [[1, 2], "done", 42, 0, False, object(), {1, 2}, ("a",), b"x"])
async def test_anything_else_is_an_unexpected_result_with_the_name_of_its_type(value: Any, executor: SystemExecutor) -> None:
    outcome = await outcome_of(returning(value), executor)
    assert isinstance(outcome, Failed)
    assert outcome.problem.code == "unexpected_result"
    assert outcome.problem.type == type(value).__name__
    assert type(value).__name__ in outcome.problem.message


async def test_a_sync_function_that_returns_a_coroutine_fails(executor: SystemExecutor) -> None:
    outcome = await outcome_of(lambda payload: hang(), executor)
    assert isinstance(outcome, Failed)
    assert outcome.problem.type == "coroutine"


@pytest.mark.parametrize(
    "outcome",
    [
        Succeeded([1]),
        Succeeded(None),
        Waiting(-1),
        Waiting(1.5),
        Waiting("soon"),
        Waiting(10**15),
        Retry("broken"),
        Retry(Problem("a", "b"), -1),
        Retry(Problem("a", 7)),
        Failed(ValueError("x")),
        Failed(Problem(None, "b")),
        Paused(None),
    ],
)
async def test_an_invalid_outcome_fails_as_an_unexpected_result(outcome: Any, executor: SystemExecutor) -> None:
    came_to = await outcome_of(returning(outcome), executor)
    assert isinstance(came_to, Failed)
    assert (came_to.problem.code, came_to.problem.type) == ("unexpected_result", type(outcome).__name__)


async def test_an_exception_becomes_a_retry_with_its_traceback(executor: SystemExecutor) -> None:
    outcome = await outcome_of(raising(KeyError("colour")), executor)
    assert isinstance(outcome, Retry)
    assert (outcome.problem.code, outcome.problem.type, outcome.problem.message) == (
        "handler_error",
        "KeyError",
        "KeyError: 'colour'",
    )
    assert "test_call.py" in (outcome.problem.traceback or "")


async def test_an_error_without_a_message_is_named_by_its_type(executor: SystemExecutor) -> None:
    outcome = await outcome_of(raising(ValueError()), executor)
    assert isinstance(outcome, Retry)
    assert outcome.problem.message == "ValueError"


async def test_an_error_of_ours_keeps_its_code(executor: SystemExecutor) -> None:
    outcome = await outcome_of(raising(InvalidInput("no")), executor)
    assert isinstance(outcome, Retry)
    assert outcome.problem.code == "invalid_input"


async def test_non_retryable_fails_with_its_code(executor: SystemExecutor) -> None:
    outcome = await outcome_of(raising(NonRetryable("card stolen", "card_stolen")), executor)
    assert isinstance(outcome, Failed)
    assert (outcome.problem.code, outcome.problem.message) == ("card_stolen", "card stolen")


async def test_a_very_long_traceback_is_cut(executor: SystemExecutor) -> None:
    outcome = await outcome_of(raising(ValueError("x" * 100_000)), executor)
    assert isinstance(outcome, Retry)
    assert len(outcome.problem.traceback or "") <= 16 * 1024


@pytest.mark.parametrize("isolation", ["loop", "thread"])
async def test_a_handler_that_calls_exit_does_not_end_the_worker(isolation: str, executor: SystemExecutor) -> None:
    def leave(payload: Any) -> None:
        raise SystemExit(3)

    outcome = await outcome_of(raising(SystemExit(3)) if isolation == "loop" else leave, executor)
    assert isinstance(outcome, Retry)
    assert outcome.problem.type == "SystemExit"


async def test_a_cancellation_raised_inside_a_handler_is_an_error_of_that_handler(executor: SystemExecutor) -> None:
    async def handler(payload: Any) -> None:
        inner = asyncio.ensure_future(hang())
        asyncio.get_running_loop().call_soon(inner.cancel)
        await inner

    ctx = context()
    outcome = await outcome_of(handler, executor, ctx)
    assert isinstance(outcome, Retry)
    assert outcome.problem.type == "CancelledError"
    assert not ctx.cancelled


@pytest.mark.parametrize("where", ["handler", "task"])
async def test_a_timeout_stops_the_attempt_and_counts_as_a_failure(where: str, executor: SystemExecutor) -> None:
    ctx = context(timeout_for=20 if where == "task" else None)
    outcome = await outcome_of(hang, executor, ctx, timeout=0.02 if where == "handler" else 60)
    assert isinstance(outcome, Retry)
    assert outcome.problem.code == "timeout"
    assert ctx.cancelled


async def test_a_timeout_error_of_a_handler_is_not_a_timeout_of_its_attempt(executor: SystemExecutor) -> None:
    outcome = await outcome_of(raising(TimeoutError("upstream")), executor, timeout=60)
    assert isinstance(outcome, Retry)
    assert (outcome.problem.code, outcome.problem.message) == ("handler_error", "upstream")


async def test_a_deadline_that_passes_while_it_runs_fails_the_task(executor: SystemExecutor) -> None:
    outcome = await outcome_of(hang, executor, context(deadline_at=1020), timeout=60)
    assert isinstance(outcome, Failed)
    assert outcome.problem.code == "deadline_exceeded"


async def test_a_timeout_before_the_deadline_is_a_timeout(executor: SystemExecutor) -> None:
    outcome = await outcome_of(hang, executor, context(deadline_at=61_000), timeout=0.02)
    assert isinstance(outcome, Retry)
    assert outcome.problem.code == "timeout"


async def test_canceling_reaches_an_async_handler_and_raises_its_flag(executor: SystemExecutor) -> None:
    started, cleaned = asyncio.Event(), asyncio.Event()

    async def handler(payload: Any) -> None:
        started.set()
        try:
            await hang()
        finally:
            cleaned.set()

    ctx = context()
    running = asyncio.ensure_future(outcome_of(handler, executor, ctx))
    await started.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert cleaned.is_set()
    assert ctx.cancelled


async def test_a_sync_handler_that_is_canceled_sees_the_flag_and_its_thread_counts_until_it_ends(executor: SystemExecutor) -> None:
    started, go_on, ended = asyncio.Event(), threading.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    saw: list[bool] = []

    def handler(payload: Any, ctx: Context) -> None:
        loop.call_soon_threadsafe(started.set)
        saw.append(ctx.wait_cancelled(BOUND))
        go_on.wait(BOUND)
        loop.call_soon_threadsafe(ended.set)

    running = asyncio.ensure_future(outcome_of(handler, executor))
    await started.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert executor.abandoned(["work"]) == 1
    assert executor.abandoned(["other"]) == 0
    go_on.set()
    await asyncio.wait_for(ended.wait(), BOUND)
    assert saw == [True]
    executor._threads.shutdown(wait=True)
    assert executor.abandoned(["work"]) == 0


async def test_a_sync_handler_that_waits_for_a_thread_is_never_started_once_canceled(executor: SystemExecutor) -> None:
    both, release = threading.Barrier(3), threading.Event()

    def busy(payload: Any) -> None:
        both.wait(BOUND)
        release.wait(BOUND)

    calls: list[int] = []
    busies = [asyncio.ensure_future(outcome_of(busy, executor)) for _ in range(2)]
    await asyncio.to_thread(both.wait, BOUND)
    queued = asyncio.ensure_future(outcome_of(lambda payload: calls.append(1), executor))
    await asyncio.sleep(0)
    queued.cancel()
    await asyncio.gather(queued, return_exceptions=True)
    assert executor.abandoned(["work"]) == 0
    release.set()
    await asyncio.gather(*busies)
    assert not calls
