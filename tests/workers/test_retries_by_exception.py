"""Retries by exception: the class of the exception decides, wherever the policy and the code are."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.workers import isolated

from treadle import RetryPolicy, RunFailed, StepFailed, TaskFailed
from treadle.model.errors import InvalidInput, InvalidPolicy
from treadle.testing.environment import Environment


class Refused(ConnectionError):
    pass


POLICIES = {
    "on": RetryPolicy.of(5, first=0, on=(ConnectionError, TimeoutError)),
    "never": RetryPolicy.of(5, first=0, never=(ValueError,)),
    "names": RetryPolicy.of(5, first=0, on=("ConnectionError", "TimeoutError")),
}
CODE = RetryPolicy.of(5, first=0, should_retry=lambda error: isinstance(error, OSError))

Fail = Callable[[], Awaitable[None]]
Run = Callable[[Environment, Fail, RetryPolicy], Awaitable[str]]


class Work:
    """Fails with the second exception after the first ones."""

    def __init__(self, *errors: Exception) -> None:
        self.errors, self.calls = list(errors), 0

    async def fail(self) -> None:
        self.calls += 1
        raise self.errors.pop(0)


async def _failed(env: Environment, task: Any) -> str:
    with pytest.raises(TaskFailed) as failed:
        await env.result(task)
    dead = await env.engine.kernel.dead_letters.get(task.id)
    assert dead.error["message"] == failed.value.error
    why = await env.engine.why(task)
    assert failed.value.error in why.text
    return failed.value.error


async def of_a_handler(env: Environment, fail: Fail, policy: RetryPolicy) -> str:
    env.engine.handler("work", retry=policy)(_async(fail))
    return await _failed(env, await env.engine.enqueue("work"))


async def of_a_sync_handler(env: Environment, fail: Fail, policy: RetryPolicy) -> str:
    def work(payload: dict[str, Any]) -> None:
        asyncio.run(fail())  # type: ignore[arg-type]

    env.engine.handler("work", retry=policy)(work)
    return await _failed(env, await env.engine.enqueue("work"))


async def of_a_task(env: Environment, fail: Fail, policy: RetryPolicy) -> str:
    env.engine.handler("work", retry=RetryPolicy.of(0, never=(Exception,)))(_async(fail))
    return await _failed(env, await env.engine.enqueue("work", retry=policy))


async def of_a_step(env: Environment, fail: Fail, policy: RetryPolicy) -> str:
    return await _caught(env, lambda ctx: ctx.step(fail, retry=policy))


async def of_an_effect(env: Environment, fail: Fail, policy: RetryPolicy) -> str:
    return await _caught(env, lambda ctx: ctx.effect("pay", fail, retry=policy))


async def of_a_call(env: Environment, fail: Fail, policy: RetryPolicy) -> str:
    env.engine.handler("work")(_async(fail))
    return await _caught(env, lambda ctx: ctx.call("work", retry=policy))


async def _caught(env: Environment, operation: Callable[[Any], Awaitable[Any]]) -> str:
    @env.engine.function("f")
    async def function(payload: dict[str, Any], ctx: Any) -> Any:
        try:
            await operation(ctx)
        except (StepFailed, TaskFailed) as failed:
            return failed.error

    return str(await env.result(await env.engine.start("f")))


def _async(fail: Fail) -> Any:
    async def work(payload: dict[str, Any]) -> None:
        await fail()

    return work


STORED: list[Run] = [of_a_handler, of_a_sync_handler, of_a_task, of_a_step, of_an_effect, of_a_call]
IN_CODE: list[Run] = [of_a_handler, of_a_sync_handler, of_a_step, of_an_effect]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("run", STORED, ids=lambda run: run.__name__)
async def test_an_exception_outside_the_policy_is_not_retried(run: Run, policy: str) -> None:
    work = Work(Refused("busy"), TimeoutError(), UnicodeError("bad"))
    async with Environment() as env:
        message = await run(env, work.fail, POLICIES[policy])
    reason = "UnicodeError is a ValueError, which is in never" if policy == "never" else "UnicodeError is not in on"
    assert message == f"bad (not retried: {reason})"
    assert work.calls == 3


@pytest.mark.parametrize("run", IN_CODE, ids=lambda run: run.__name__)
async def test_code_on_the_worker_decides_about_the_exception_itself(run: Run) -> None:
    work = Work(Refused("busy"), ValueError("bad"))
    async with Environment() as env:
        assert await run(env, work.fail, CODE) == "bad (not retried: should_retry returned false)"
    assert work.calls == 2


@pytest.mark.parametrize("run", IN_CODE, ids=lambda run: run.__name__)
async def test_code_that_raises_ends_the_retries(run: Run) -> None:
    work = Work(Refused("busy"))
    async with Environment() as env:
        message = await run(env, work.fail, RetryPolicy.of(5, should_retry=lambda error: 1 / 0 > 0))
    assert message == "busy (not retried: should_retry raised ZeroDivisionError('division by zero'))"


async def test_the_policy_of_a_task_replaces_the_code_of_its_handler() -> None:
    work = Work(*[ValueError("bad") for _ in range(3)])
    async with Environment() as env:
        env.engine.handler("work", retry=CODE)(_async(work.fail))
        assert await _failed(env, await env.engine.enqueue("work", retry=RetryPolicy.of(2, first=0))) == "bad"
    assert work.calls == 3


@pytest.mark.parametrize("on", [TimeoutError, OSError, "TimeoutError"])
async def test_the_timeout_of_an_attempt_is_a_timeout_error(on: Any) -> None:
    calls: list[int] = []

    async def hang(payload: dict[str, Any], ctx: Any) -> None:
        calls.append(ctx.attempt)
        await asyncio.Event().wait()

    async with Environment() as env:
        policy = RetryPolicy.of(1, first=0, on=[on])
        env.engine.handler("work", retry=policy, timeout=0.01)(hang)
        assert "not retried" not in await _failed(env, await env.engine.enqueue("work"))
    assert calls == [1, 2]


async def test_an_exception_of_an_isolated_handler_is_selected_by_its_class() -> None:
    async with Environment() as env:
        policy = RetryPolicy.of(5, never=(isolated.Picky,))
        env.engine.handler("picky", retry=policy, isolation="process")(isolated.picky)
        assert "not retried: Picky is in never" in await _failed(env, await env.engine.enqueue("picky"))
        with pytest.raises(InvalidPolicy, match="should_retry"):
            env.engine.handler("again", retry=CODE, isolation="process")(isolated.picky)


async def test_a_policy_with_code_is_refused_wherever_it_would_be_stored() -> None:
    async with Environment() as env:
        engine = env.engine

        @engine.function("f")
        async def function(payload: dict[str, Any], ctx: Any) -> Any:
            await ctx.call("work", retry=CODE)

        stored: list[Callable[[], Awaitable[Any]]] = [
            lambda: engine.enqueue("work", retry=CODE),
            lambda: engine.schedules.create("s", every=60, task="work", retry=CODE),
            lambda: engine.watchers.create("w", url="http://localhost/", task="work", retry=CODE),
            lambda: engine.start_plan([{"name": "a", "handler": "work", "retry": CODE}]),  # type: ignore[list-item]
        ]
        for store in stored:
            with pytest.raises(InvalidInput, match="should_retry cannot be stored"):
                await store()
        with pytest.raises(RunFailed, match="should_retry cannot be stored"):
            await env.result(await engine.start("f"))
