"""Every idiom of asyncio around every operation of `ctx` fails its run immediately, with the operations that do the same."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any

import pytest
from tests.functions.driver import Scene, function_scene
from tests.limits import BOUND

from treadle.model.errors import MisusedContext
from treadle.model.values import decode_error
from treadle.workers.functions.registry import AWAITED

pytestmark = pytest.mark.filterwarnings("ignore::treadle.DeterminismWarning")


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    async with function_scene() as opened:
        yield opened


def one() -> int:
    return 1


OPERATIONS: dict[str, Callable[[Any], Any]] = {
    "step": lambda ctx: ctx.step(one),
    "transaction": lambda ctx: ctx.transaction(partial(sqlite3.connect, ":memory:"), lambda connection: 1),
    "effect": lambda ctx: ctx.effect("mail", one),
    "call": lambda ctx: ctx.call("pack"),
    "external": lambda ctx: ctx.external("pack"),
    "start": lambda ctx: ctx.start("ship"),
    "hosted": lambda ctx: ctx.gather(ctx.step(one)),  # frameworks may create asyncio tasks for `hosted` itself
    "first": lambda ctx: ctx.first(ctx.sleep(1), ctx.step(one)),
    "gather": lambda ctx: ctx.gather(ctx.sleep(1), ctx.step(one)),
    "sleep": lambda ctx: ctx.sleep(1),
    "sleep_until": lambda ctx: ctx.sleep_until(ctx.now()),
    "approval": lambda ctx: ctx.approval("Sure?"),
    "wait_for": lambda ctx: ctx.wait_for("paid"),
    "update": lambda ctx: ctx.update("amount"),
    "typed update": lambda ctx: ctx.update("amount", type=int),
    "continue_as_new": lambda ctx: ctx.continue_as_new(),
    "a coroutine with operations": lambda ctx: branch(ctx),
}


async def branch(ctx: Any) -> int:
    await ctx.sleep(1)
    return await ctx.step(one)  # type: ignore[no-any-return]


async def in_timeout(operation: Any) -> Any:
    async with asyncio.timeout(3600):
        return await operation


async def in_group(operation: Any) -> Any:
    async with asyncio.TaskGroup() as group:
        group.create_task(operation)


async def ignored_in_group(operation: Any) -> Any:
    try:
        await in_group(operation)
    except BaseExceptionGroup:
        return "suppressed"


async def completed(operation: Any) -> Any:
    return [await ended for ended in asyncio.as_completed([operation])]


async def awaited_task(operation: Any) -> Any:
    return await asyncio.create_task(operation)


async def waited(operation: Any) -> Any:
    done, _ = await asyncio.wait([asyncio.ensure_future(operation)])
    return [type(task.exception()).__name__ for task in done]


IDIOMS: dict[str, Callable[[Any], Any]] = {
    "wait_for": lambda operation: asyncio.wait_for(operation, 3600),
    "timeout": in_timeout,
    "TaskGroup": in_group,
    "TaskGroup whose error is suppressed": ignored_in_group,
    "gather": lambda operation: asyncio.gather(operation),
    "gather(return_exceptions=True)": lambda operation: asyncio.gather(operation, return_exceptions=True),
    "as_completed": completed,
    "create_task": awaited_task,
    "ensure_future and wait": waited,
    "shield": lambda operation: asyncio.shield(operation),
}


def test_all_operations_are_in_the_table() -> None:
    assert OPERATIONS.keys() >= AWAITED


@pytest.mark.parametrize("idiom", IDIOMS)
async def test_an_idiom_of_asyncio_around_an_operation_fails_the_run_with_its_replacement(scene: Scene, idiom: str) -> None:
    @scene.engine.function("ship")
    async def ship(payload: Any, ctx: Any) -> None: ...

    @scene.engine.function("f")
    async def function(payload: Any, ctx: Any) -> Any:
        await ctx.step(one, name="before")
        return await IDIOMS[idiom](OPERATIONS[payload["operation"]](ctx))

    for operation in OPERATIONS:
        started = await scene.engine.start_function("f", {"operation": operation})
        async with asyncio.timeout(BOUND):
            await scene.process().quiet()
        run = await scene.engine.kernel.runs.get_run(started.id)
        assert run.state == "failed", operation
        error = decode_error(run.error)
        assert error["code"] == MisusedContext.code, (operation, error)
        for replacement in ("`ctx.gather(...)`", "`return_exceptions=True`", "`ctx.first(...)`", "`timeout`"):
            assert replacement in error["message"]


async def test_a_step_and_code_without_operations_may_use_asyncio(scene: Scene) -> None:
    async def fetch() -> list[int]:
        async with asyncio.timeout(BOUND):
            return await asyncio.gather(asyncio.sleep(0, 1), asyncio.wait_for(asyncio.sleep(0, 2), BOUND))

    @scene.engine.function("f")
    async def function(payload: Any, ctx: Any) -> Any:
        fetched = await ctx.step(fetch, timeout=BOUND)
        async with asyncio.timeout(BOUND):
            fetched.append(await asyncio.sleep(0, 3))
        async with asyncio.timeout(None):
            fetched += await ctx.gather(ctx.step(one), ctx.step(fetch, timeout=BOUND))
        return fetched

    started = await scene.engine.start_function("f")
    await scene.process().quiet()
    assert await scene.engine.run_result(started) == [1, 2, 3, 1, [1, 2]]


async def test_a_gather_returns_failures_in_place_and_a_replay_returns_the_same(scene: Scene) -> None:
    def broken() -> None:
        raise ValueError("broken")

    @scene.engine.function("f")
    async def function(payload: Any, ctx: Any) -> Any:
        results = await ctx.gather(
            ctx.step(one), ctx.step(broken), ctx.wait_for("go", timeout=1), ctx.wait_for("n", type=int), return_exceptions=True
        )
        shown = [result if isinstance(result, int) else type(result).__name__ for result in results]
        return [shown, await ctx.wait_for("end")]

    started = await scene.engine.start_function("f")
    await scene.engine.signal(started, "n", "no number")
    for signal in (None, "end"):
        if signal is not None:
            await scene.engine.signal(started, signal)
        await scene.process().quiet()  # another process: a replay
        scene.clock.advance(2)
        await scene.process().quiet()
    shown = [1, "ValueError", "SignalTimeout", "InvalidPayload"]
    assert await scene.engine.run_result(started) == [shown, None]
