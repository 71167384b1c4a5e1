"""A retry repeats failed calls whose errors the function has collected, and everything after them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from treadle import Engine, RunFailed, TaskFailed
from treadle.model.names import HANDLER
from treadle.model.states import TaskState
from treadle.testing.environment import Environment

CALLS = 4


class BatchFailed(Exception):
    """Raised by the code of a function, with the errors that it has collected, or with their number."""


class Work:
    """A handler that fails for odd numbers until it is repaired, and a step after it."""

    def __init__(self, engine: Engine) -> None:
        self.broken = True
        self.called: list[Any] = []

        @engine.handler("work")
        async def work(payload: dict[str, Any]) -> dict[str, Any]:
            self.called.append(payload["n"])
            if self.broken and payload["n"] % 2:
                raise ValueError(f"{payload['n']} is broken")
            return {"n": payload["n"]}

        @engine.function("child")
        async def child(payload: dict[str, Any], ctx: Any) -> Any:
            return await ctx.call("work", payload)

    async def after(self) -> str:
        self.called.append("after")
        return "done"


async def _call(ctx: Any, number: int) -> Any:
    return await ctx.call("work", {"n": number})


async def _child(ctx: Any, number: int) -> Any:
    started = await ctx.start("child", {"n": number})
    return await started.result()


async def in_a_gather(ctx: Any, errors: list[Exception], call: Callable[..., Awaitable[Any]]) -> None:
    async def attempt(number: int) -> None:
        try:
            await call(ctx, number)
        except (TaskFailed, RunFailed) as error:
            errors.append(error)

    await ctx.gather(*[attempt(number) for number in range(CALLS)])


async def in_gathers_within_a_gather(ctx: Any, errors: list[Exception], call: Callable[..., Awaitable[Any]]) -> None:
    async def half(numbers: range) -> None:
        await ctx.gather(*[attempt(number) for number in numbers])

    async def attempt(number: int) -> None:
        try:
            await call(ctx, number)
        except (TaskFailed, RunFailed) as error:
            errors.append(error)

    await ctx.gather(half(range(CALLS // 2)), half(range(CALLS // 2, CALLS)))


async def one_after_another(ctx: Any, errors: list[Exception], call: Callable[..., Awaitable[Any]]) -> None:
    for number in range(CALLS):
        try:
            await call(ctx, number)
        except (TaskFailed, RunFailed) as error:
            errors.append(error)


def with_their_number(errors: list[Exception]) -> Exception:
    return BatchFailed(f"{len(errors)} failed")


def with_the_errors(errors: list[Exception]) -> Exception:
    return BatchFailed("failed", errors)


def as_a_group(errors: list[Exception]) -> Exception:
    return ExceptionGroup("failed", errors)


def the_first(errors: list[Exception]) -> Exception:
    return errors[0]


def from_the_last(errors: list[Exception]) -> Exception:
    error = BatchFailed("failed")
    error.__cause__ = errors[-1]
    return error


RAISED = [with_their_number, with_the_errors, as_a_group, the_first, from_the_last]


@pytest.mark.parametrize("gathers", [in_a_gather, in_gathers_within_a_gather], ids=lambda gathers: gathers.__name__)
@pytest.mark.parametrize("call", [_call, _child], ids=["call", "child"])
@pytest.mark.parametrize("raised", RAISED, ids=lambda raised: raised.__name__)
async def test_a_retry_repeats_all_calls_that_failed_in_a_gather(raised: Any, call: Any, gathers: Any) -> None:
    async with Environment() as env:
        work = Work(env.engine)

        @env.engine.function("batch")
        async def batch(payload: dict[str, Any], ctx: Any) -> Any:
            errors: list[Exception] = []
            await gathers(ctx, errors, call)
            last = await ctx.step(work.after, name="after")
            if errors:
                raise raised(errors)
            return last

        started = await env.engine.start("batch")
        with pytest.raises(RunFailed):
            await env.result(started)
        work.broken = False
        work.called.clear()
        await env.engine.runs.retry(started.id)
        assert await env.result(started) == "done"
        assert sorted(work.called, key=str) == [1, 3, "after"]
        assert (await env.engine.kernel.verify()).problems == ()


@pytest.mark.parametrize("raised", [with_their_number, with_the_errors, as_a_group], ids=lambda raised: raised.__name__)
async def test_a_retry_repeats_all_that_followed_a_failed_call(raised: Any) -> None:
    async with Environment() as env:
        work = Work(env.engine)

        @env.engine.function("batch")
        async def batch(payload: dict[str, Any], ctx: Any) -> Any:
            errors: list[Exception] = []
            await one_after_another(ctx, errors, _call)
            if errors:
                raise raised(errors)
            return "done"

        started = await env.engine.start("batch")
        with pytest.raises(RunFailed):
            await env.result(started)
        work.broken = False
        work.called.clear()
        await env.engine.runs.retry(started.id)
        assert await env.result(started) == "done"
        assert work.called == [1, 2, 3]


async def test_a_failure_that_the_code_has_handled_before_another_one_is_not_repeated() -> None:
    async with Environment() as env:
        work = Work(env.engine)

        @env.engine.function("batch")
        async def batch(payload: dict[str, Any], ctx: Any) -> Any:
            try:
                await _call(ctx, 1)
            except TaskFailed:
                await _call(ctx, 2)
            return await _call(ctx, 3)

        started = await env.engine.start("batch")
        with pytest.raises(RunFailed):
            await env.result(started)
        work.broken = False
        work.called.clear()
        await env.engine.runs.retry(started.id)
        assert await env.result(started) == {"n": 3}
        assert work.called == [3]


async def test_a_failed_child_task_is_retried_by_its_own_id() -> None:
    async with Environment() as env:
        work = Work(env.engine)

        @env.engine.function("batch")
        async def batch(payload: dict[str, Any], ctx: Any) -> Any:
            errors: list[Exception] = []
            await in_a_gather(ctx, errors, _call)
            if errors:
                raise BatchFailed("failed", errors)
            return "done"

        started = await env.engine.start("batch")
        with pytest.raises(RunFailed):
            await env.result(started)
        failed = await env.engine.kernel.reads.list_tasks(states=(TaskState.FAILED,), kind=HANDLER)
        assert len(failed) == 2
        work.broken = False
        work.called.clear()
        await env.engine.retry(failed[0].id)
        with pytest.raises(RunFailed):  # only that call was repeated, and the error of the other one is still collected
            await env.result(started)
        assert len(work.called) == 1
        await env.engine.retry(next(task.id for task in failed if task.id != failed[0].id))
        assert await env.result(started) == "done"


FLOW = """
namespace shop {
  event facet Pay(n: Long) => (n: Long)
  workflow Buy(n: Long) => (n: Long) andThen {
    p = Pay(n = $.n)
    yield Buy(n = p.n)
  }
}
"""


async def test_a_failed_task_of_a_workflow_is_retried_by_its_own_id() -> None:
    async with Environment() as env:
        broken = True

        @env.engine.handler("shop.Pay")
        async def pay(payload: dict[str, Any]) -> dict[str, Any]:
            if broken:
                raise ValueError("no money")
            return {"n": payload["n"]}

        started = await env.engine.start_run([("shop.afl", FLOW)], "Buy", {"n": 7})
        with pytest.raises(RunFailed):
            await env.result(started.id)
        (failed,) = await env.engine.kernel.reads.list_tasks(states=(TaskState.FAILED,), kind=HANDLER)
        broken = False
        await env.engine.retry(failed.id)
        assert await env.result(started.id) == {"n": 7}
