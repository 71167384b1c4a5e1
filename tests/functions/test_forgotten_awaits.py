"""An operation of `ctx` that is created and never awaited fails its run, and a warning at registration names it."""

from __future__ import annotations

import ast
import inspect
import sqlite3
import textwrap
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest

from treadle import DeterminismWarning, Engine, StepFailed
from treadle.model.values import decode_error
from treadle.testing import Environment
from treadle.workers.functions.context import FunctionContext
from treadle.workers.functions.registry import AWAITED, find_unawaited

pytestmark = pytest.mark.filterwarnings("ignore:coroutine .* was never awaited", "ignore::treadle.DeterminismWarning")


def one() -> int:
    return 1


async def ship(payload: Any, ctx: Any) -> int:
    return 1


Begin = Callable[[Any], Any]
FORGOTTEN: dict[str, tuple[Begin, str]] = {
    "step": (lambda ctx: ctx.step(one), "step one"),
    "transaction": (lambda ctx: ctx.transaction(partial(sqlite3.connect, ":memory:"), one), "step one"),
    "effect": (lambda ctx: ctx.effect("mail", one), "effect mail"),
    "call": (lambda ctx: ctx.call("pack"), "call pack"),
    "external": (lambda ctx: ctx.external("pack"), "call pack"),
    "start": (lambda ctx: ctx.start("ship"), "start ship"),
    "hosted": (lambda ctx: ctx.hosted("tool", ctx.step(one)), "hosted tool"),
    "first": (lambda ctx: ctx.first(ctx.sleep(1), ctx.step(one)), "first"),
    "gather": (lambda ctx: ctx.gather(ctx.sleep(1), ctx.step(one)), "gather"),
    "sleep": (lambda ctx: ctx.sleep(1), "sleep"),
    "sleep_until": (lambda ctx: ctx.sleep_until(ctx.now()), "sleep"),
    "approval": (lambda ctx: ctx.approval("Sure?"), "approval"),
    "wait_for": (lambda ctx: ctx.wait_for("paid"), "wait paid"),
    "update": (lambda ctx: ctx.update("amount"), "update amount"),
    "continue_as_new": (lambda ctx: ctx.continue_as_new(), "continue_as_new"),
    "typed update": (lambda ctx: ctx.update("amount", type=int), "update amount"),
    "nested gather": (lambda ctx: ctx.gather(ctx.gather(ctx.sleep(1))), "gather"),
}


def test_the_tests_cover_all_operations_of_the_context() -> None:
    tree = ast.parse(textwrap.dedent(inspect.getsource(FunctionContext)))
    methods = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")]
    awaited = {node.name for node in methods if ast.unparse(node.returns or node.args).startswith(("Awaitable", "Coroutine"))}
    assert awaited == AWAITED == set(FORGOTTEN) - {"typed update", "nested gather"}


async def error_of(engine: Engine, run: Any) -> dict[str, Any]:
    return decode_error((await engine.kernel.runs.get_run(run.id)).error)


async def failure_of(engine: Engine, name: str = "order") -> str:
    async with Environment(engine) as env:
        run = await engine.start_function(name)
        await env.drain()
        error = await error_of(engine, run)
        assert error["code"] == "never_awaited", error
        return str(error["message"])


@pytest.mark.parametrize(("begin", "name"), FORGOTTEN.values(), ids=FORGOTTEN)
async def test_a_forgotten_operation_fails_the_run_with_its_name_and_line(begin: Begin, name: str) -> None:
    engine = Engine("memory://")
    engine.function("ship")(ship)

    @engine.function("order")
    async def order(payload: Any, ctx: Any) -> int:
        await ctx.step(one, name="before")
        begin(ctx)
        return await ctx.step(one, name="after")  # type: ignore[no-any-return]

    line = begin.__code__.co_firstlineno
    assert f"{name} (test_forgotten_awaits.py, line {line})," in await failure_of(engine)


async def test_parts_of_operations_are_forgotten_with_their_own_names() -> None:
    engine = Engine("memory://")
    engine.function("ship")(ship)

    @engine.function("order")
    async def order(payload: Any, ctx: Any) -> int:
        child = await ctx.start("ship")
        child.result()
        await ctx.gather(branch(ctx))
        return 1

    async def branch(ctx: Any) -> None:
        await ctx.step(one)
        for _ in range(3):
            ctx.sleep(1)

    message = await failure_of(engine)
    assert "result ship.result (" in message
    assert "sleep (" in message
    assert " and 1 more" in message


@pytest.mark.parametrize("answer", ["reply", "reject"])
async def test_a_forgotten_answer_fails_the_run(answer: str) -> None:
    engine = Engine("memory://")

    @engine.function("order")
    async def order(payload: Any, ctx: Any) -> None:
        update = await ctx.update("amount")
        getattr(update, answer)("no")

    async with Environment(engine) as env:
        run = await engine.start_function("order")
        await env.drain()
        await engine.kernel.run_services.functions.send_update(run.id, "amount", 1)
        await env.drain()
        error = await error_of(engine, run)
    assert error["code"] == "never_awaited"


async def test_a_run_does_not_continue_as_new_without_a_forgotten_operation() -> None:
    engine = Engine("memory://")

    @engine.function("order")
    async def order(payload: Any, ctx: Any) -> None:
        ctx.sleep(1)
        await ctx.continue_as_new()

    assert "sleep" in await failure_of(engine)


async def test_operations_that_an_error_or_a_winner_made_superfluous_are_not_forgotten() -> None:
    engine = Engine("memory://")

    def broken() -> None:
        raise ValueError("broken")

    @engine.function("order")
    async def order(payload: Any, ctx: Any) -> Any:
        winner = await ctx.first(ctx.sleep(0), ctx.wait_for("never"), late=ctx.sleep(100))
        later: Awaitable[Any] = ctx.step(one)
        try:
            await ctx.gather(ctx.step(broken), ctx.sleep(0), later)
        except Exception as error:
            return [winner.index, isinstance(error, StepFailed)]

    @engine.function("broken")
    async def breaks(payload: Any, ctx: Any) -> None:
        ctx.sleep(1)
        raise ValueError("its own error")

    async with Environment(engine) as env:
        assert await env.result(await engine.start_function("order")) == [0, True]
        run = await engine.start_function("broken")
        await env.drain()
        assert (await error_of(engine, run))["message"] == "its own error"


async def careless(payload: Any, ctx: Any) -> None:
    ctx.sleep(1)
    waiting = ctx.wait_for("paid")  # noqa: F841
    kept = ctx.step(one)
    await kept
    await ctx.gather(ctx.sleep(1))
    ctx.gather(
        ctx.sleep(1),
    )
    ctx.sleep(1)  # treadle: ignore
    ctx.log("fine")


def test_registration_warns_of_each_operation_that_is_not_awaited() -> None:
    first = careless.__code__.co_firstlineno
    assert find_unawaited(careless) == [(first + 1, "ctx.sleep"), (first + 2, "ctx.wait_for"), (first + 6, "ctx.gather")]
    with pytest.warns(DeterminismWarning, match=r"careless does not await ctx.sleep\(...\).*; write `await ctx.sleep") as caught:
        Engine("memory://").function("careless")(careless)
    assert [(warning.filename, warning.lineno) for warning in caught] == [(__file__, first + line) for line in (1, 2, 6)]
