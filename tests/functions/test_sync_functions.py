"""Sync durable functions: blocking operations, and what the greenlet of their code adds to the promises of functions.

The tests with the fixture `kind` (`test_functions.py` and others) hold for sync functions, too.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import Any, get_overloads

import pytest
from tests.engines import url_of
from tests.functions.driver import Scene, function_scene, until
from tests.sizes import POSTGRES

from treadle import BlockingFunctionContext, DeterminismWarning, Engine, FunctionContext
from treadle.model.errors import InvalidInput, MisusedContext, StepFailed
from treadle.model.values import decode_error
from treadle.workers.call import handler_in
from treadle.workers.functions.registry import AWAITED
from treadle.workers.functions.sync import _Code, wait

UNBLOCKED = {"hosted"}
"""Operations for frameworks that create asyncio tasks."""
TYPES = {"ChildRun[R]": "BlockingChildRun[R]", "ChildRun[Any]": "BlockingChildRun[Any]", "Update[R]": "BlockingUpdate[R]"}
TYPES["Update[Any]"] = "BlockingUpdate[Any]"


@pytest.fixture(params=["memory", POSTGRES])
async def scene(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Scene]:
    async with function_scene(url_of(request.param, request, tmp_path)) as opened:
        yield opened


async def result_of(scene: Scene, name: str = "f", **processes: Any) -> Any:
    started = await scene.engine.start_function(name)
    await scene.process(**processes).quiet()
    run = await scene.engine.kernel.runs.get_run(started.id)
    return decode_error(run.error) if run.state == "failed" else await scene.engine.run_result(started)


@pytest.mark.parametrize("name", sorted(AWAITED - UNBLOCKED))
def test_a_blocking_operation_has_the_parameters_and_the_result_of_the_awaited_one(name: str) -> None:
    awaited, blocking = getattr(FunctionContext, name), getattr(BlockingFunctionContext, name)
    forms = zip(get_overloads(awaited) or [awaited], get_overloads(blocking) or [blocking], strict=True)
    for one, other in forms:
        expected, declared = dict(one.__annotations__), dict(other.__annotations__)
        result = expected.pop("return").removeprefix("Coroutine[Any, Any, ").removeprefix("Awaitable[").removesuffix("]")
        assert declared.pop("return") == TYPES.get(result, result)
        if name in ("gather", "first"):
            declared = {key: value.replace("Callable[[], ", "Awaitable[").replace("calls", "") for key, value in declared.items()}
            assert list(declared.values()) == list(expected.values())
        elif name != "effect" or declared.keys() == expected.keys():
            assert declared == expected


def test_a_process_without_sync_functions_does_not_import_greenlet() -> None:
    code = (
        "import sys, treadle; from treadle.testing import Environment; engine = treadle.Engine('memory://')\n"
        "@engine.function\nasync def f(payload, ctx): ...\nprint('greenlet' in sys.modules)\n"
        "@engine.function\ndef g(payload, ctx): ...\nprint('greenlet' in sys.modules)"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert shown.split() == ["False", "True"]


async def test_a_waiting_function_holds_no_thread(scene: Scene) -> None:
    @scene.engine.function("f")
    def function(payload: Any, ctx: BlockingFunctionContext) -> Any:
        return ctx.wait_for("go")

    started = [await scene.engine.start_function("f") for _ in range(100)]
    process = scene.process()
    before = threading.active_count()
    await process.quiet()
    assert process.runner.warm == 100
    assert threading.active_count() == before
    for run in started:
        await scene.engine.signal(run, "go", run.id)
    await process.quiet()
    assert [await scene.engine.run_result(run) for run in started] == [run.id for run in started]


async def test_sync_and_async_functions_are_children_of_each_other(scene: Scene) -> None:
    @scene.engine.function
    async def leaf(n: int, ctx: FunctionContext) -> int:
        await ctx.sleep(0.01)
        return n + 1

    @scene.engine.function
    def middle(n: int, ctx: BlockingFunctionContext) -> int:
        child = ctx.start(leaf, n)
        return child.result() + child.result()

    @scene.engine.function("f")
    async def top(payload: Any, ctx: FunctionContext) -> int:
        return await (await ctx.start(middle, 3)).result()

    started = await scene.engine.start_function("f")
    process = scene.process()

    async def has_ended() -> bool:
        await process.quiet()
        scene.clock.advance(10)
        return await scene.state(started.id) == "completed"

    await until(has_ended)
    assert await scene.engine.run_result(started) == 8


@pytest.mark.postgres
async def test_code_that_never_waits_and_deep_code_that_waits_have_results(scene: Scene) -> None:
    def deep(ctx: BlockingFunctionContext, depth: int) -> int:
        return deep(ctx, depth - 1) + 1 if depth else ctx.step(int)

    @scene.engine.function("f")
    def function(payload: Any, ctx: BlockingFunctionContext) -> list[int]:
        return [sum(number for number in range(4)), deep(ctx, 500)]

    scene.engine.function("plain")(lambda payload: 7)
    assert await result_of(scene) == [6, 500]
    assert await result_of(scene, "plain") == 7


async def test_context_variables_reach_steps_and_branches_and_stay_after_a_wait(scene: Scene) -> None:
    tenant: ContextVar[str] = ContextVar("tenant", default="none")

    @scene.engine.function("f")
    def function(payload: Any, ctx: BlockingFunctionContext) -> list[str]:
        tenant.set("acme")
        ctx.sleep(0)
        return [tenant.get(), ctx.step(tenant.get, name="thread"), *ctx.gather(tenant.get, partial(ctx.step, tenant.get))]

    assert await result_of(scene) == ["acme"] * 4
    assert tenant.get() == "none"


PLACES = {
    "a sync step": lambda ctx: ctx.step(ctx.sleep, 1),
    "an async step": lambda ctx: ctx.step(in_coroutine, ctx),
    "a thread": lambda ctx: in_thread(ctx),
}


async def in_coroutine(ctx: Any) -> None:
    ctx.sleep(1)


def in_thread(ctx: Any) -> None:
    errors: list[BaseException] = []

    def call() -> None:
        try:
            ctx.sleep(1)
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
    raise errors[0]


@pytest.mark.parametrize("place", PLACES)
async def test_an_operation_outside_the_code_of_its_function_is_refused(scene: Scene, place: str) -> None:
    @scene.engine.function("f")
    def function(payload: Any, ctx: BlockingFunctionContext) -> str | None:
        try:
            PLACES[place](ctx)
        except (MisusedContext, StepFailed) as error:
            return str(error)
        return None

    assert "outside the code of its sync function" in await result_of(scene)


async def test_a_group_takes_functions_that_wait(scene: Scene) -> None:
    refused = {
        "a value": lambda ctx: ctx.gather(ctx.step(int)),
        "a value in first": lambda ctx: ctx.first(ctx.step(int)),
        "no operation": lambda ctx: ctx.first(lambda: ctx.sleep(9), lambda: 7),
        "two operations": lambda ctx: ctx.first(lambda: [ctx.step(int), ctx.step(int)]),
    }

    @scene.engine.function("f")
    def function(payload: Any, ctx: BlockingFunctionContext) -> dict[str, str]:
        messages = {}
        for name, call in refused.items():
            with pytest.raises(InvalidInput) as caught:
                call(ctx)
            messages[name] = str(caught.value)
        return messages

    messages = await result_of(scene)
    assert "write `lambda: ctx.call(...)`" in messages["a value"]
    assert "ctx.first of a sync function takes functions" in messages["a value in first"]
    assert "returned without an operation" in messages["no operation"]
    assert "one operation" in messages["two operations"]


async def test_the_winner_of_a_first_finishes_its_function_and_losers_clean_up(scene: Scene) -> None:
    ended: list[str] = []

    @scene.engine.function("f")
    def function(payload: Any, ctx: BlockingFunctionContext) -> list[Any]:
        def late() -> str:
            try:
                ctx.sleep(3600)
                return "late"
            finally:
                ended.append("late")

        winner = ctx.first(late, soon=lambda: ctx.step(int) + 5)
        return [winner.name, winner.index, winner.value, *ended]

    assert await result_of(scene) == ["soon", 1, 5, "late"]


@pytest.mark.parametrize("warm", [0, 1000])
async def test_eviction_stops_the_code_without_a_record(scene: Scene, warm: int) -> None:
    cleanups: list[str] = []

    @scene.engine.function("f")
    def function(payload: Any, ctx: BlockingFunctionContext) -> str:
        try:
            ctx.wait_for("go")
        except Exception:
            cleanups.append("exception")
            raise
        finally:
            ctx.step(cleanups.append, "finally")
        return "done"

    started = await scene.engine.start_function("f")
    first = scene.process(warm=warm)
    await first.quiet()
    first.die()
    await asyncio.sleep(0)
    assert cleanups == []
    assert len(await scene.steps(started.id)) == 1
    await scene.engine.signal(started, "go")
    await scene.process().quiet()
    assert await scene.engine.run_result(started) == "done"
    assert cleanups == ["finally"]


async def test_code_that_the_interpreter_disposes_of_cannot_wait() -> None:
    refused: list[BaseException] = []

    def code() -> None:
        try:
            wait(asyncio.sleep(0))
        finally:
            try:
                context.sleep(1)
            except BaseException as error:
                refused.append(error)

    context = object.__new__(BlockingFunctionContext)
    disposable = _Code(code)
    disposable.proceed(disposable.switch).close()
    del disposable
    assert [type(error) for error in refused] == [MisusedContext]


async def test_a_sync_function_that_returns_a_coroutine_fails(scene: Scene) -> None:
    async def later() -> int:
        return 7

    scene.engine.function("f")(lambda payload: later())
    error = await result_of(scene)
    assert error["code"] == "invalid_result"
    assert "make it `async def`" in error["message"]


def test_registration_warns_of_calls_in_sync_code() -> None:
    import time

    def naps(payload: Any, ctx: BlockingFunctionContext) -> None:
        time.sleep(1)  # never runs: the lint reads it

    with pytest.warns(DeterminismWarning, match="calls time.sleep, .*; use ctx.sleep"):
        Engine("memory://").function("naps")(naps)


async def test_code_that_blocks_the_loop_is_named(scene: Scene) -> None:
    @scene.engine.function("f")
    def function(payload: Any, ctx: BlockingFunctionContext) -> list[str | None]:
        def executing() -> str | None:
            return handler_in(0, asyncio.get_running_loop(), 0, 1)

        before = executing()
        ctx.sleep(0)
        return [before, executing(), *ctx.gather(executing)]

    assert await result_of(scene) == ["f@1"] * 3


async def test_a_sync_function_receives_dependencies(scene: Scene) -> None:
    class Prices:
        tea = 7

    scene.engine.provide(Prices, Prices, scope="task")

    @scene.engine.function("f")
    def function(payload: Any, ctx: BlockingFunctionContext, prices: Prices) -> list[int]:
        ctx.sleep(0)
        return [prices.tea, ctx.step(lambda: prices.tea)]

    assert await result_of(scene) == [7, 7]
