"""An operation of `ctx` with an invalid argument raises, takes no place in the history, and raises the same in every replay."""

from __future__ import annotations

import inspect
import math
import sqlite3
from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import Any

import pytest
from tests.functions.driver import Scene, function_scene

from treadle import FunctionContext

ODD = object()
HUGE = "x" * 2_000_000
NOBODY = "0198c3de-7a10-7c3e-b2a4-5d1f0c9e8a77"


async def one() -> int:
    return 1


REFUSED: dict[str, dict[str, Callable[[Any], Any]]] = {
    "step": {
        "name": lambda ctx: ctx.step(one, name=5),
        "key": lambda ctx: ctx.step(one, key=""),
        "retry": lambda ctx: ctx.step(one, retry="x"),
        "timeout": lambda ctx: ctx.step(one, timeout=-1),
        "limit key": lambda ctx: ctx.step(one, limit_key=5),
    },
    "transaction": {
        "timeout": lambda ctx: ctx.transaction(partial(sqlite3.connect, ":memory:"), one, timeout=-1),
        "key": lambda ctx: ctx.transaction(partial(sqlite3.connect, ":memory:"), one, key=5),
    },
    "effect": {
        "request": lambda ctx: ctx.effect("pay", one, ODD),
        "request of NaN": lambda ctx: ctx.effect("pay", one, {"x": math.nan}),
        "reaction": lambda ctx: ctx.effect("pay", one, on_unknown="hope"),
        "action": lambda ctx: ctx.effect(5, one),
        "key": lambda ctx: ctx.effect("pay", one, key=""),
    },
    "call": {
        "name": lambda ctx: ctx.call("a b"),
        "payload": lambda ctx: ctx.call("work", {"x": ODD}),
        "huge payload": lambda ctx: ctx.call("work", {"x": HUGE}),
        "no object": lambda ctx: ctx.call("work", 5),
        "key": lambda ctx: ctx.call("work", key=5),
        "step name": lambda ctx: ctx.call("work", name=5),
        "priority": lambda ctx: ctx.call("work", priority="high"),
        "limit": lambda ctx: ctx.call("work", limit_key="k", limit="x"),
        "task list": lambda ctx: ctx.call("work", task_list="a b"),
        "deadline": lambda ctx: ctx.call("work", deadline=-1),
    },
    "external": {"payload": lambda ctx: ctx.external("work", {"x": ODD})},
    "start": {
        "name": lambda ctx: ctx.start("a b"),
        "unknown": lambda ctx: ctx.start("nowhere"),
        "payload": lambda ctx: ctx.start("f", {"x": ODD}),
        "huge payload": lambda ctx: ctx.start("f", {"x": HUGE}),
        "version": lambda ctx: ctx.start("f", version="new"),
        "key": lambda ctx: ctx.start("f", key=5),
        "priority": lambda ctx: ctx.start("f", priority="high"),
        "policy": lambda ctx: ctx.start("f", on_parent_close="x"),
    },
    "hosted": {
        "operation": lambda ctx: ctx.hosted("tool", 5),
        "payload": lambda ctx: ctx.hosted("tool", ctx.call("work", {"x": ODD})),
        "request": lambda ctx: ctx.hosted("tool", ctx.effect("pay", one, ODD)),
    },
    "first": {
        "nothing": lambda ctx: ctx.first(),
        "operation": lambda ctx: ctx.first(ctx.wait_for("go"), 5),
        "payload": lambda ctx: ctx.first(ctx.wait_for("never"), ctx.call("work", {"x": ODD})),
    },
    "gather": {
        "operation": lambda ctx: ctx.gather(5),
        "payload": lambda ctx: ctx.gather(ctx.step(one), ctx.call("work", {"x": ODD})),
        "start": lambda ctx: ctx.gather(ctx.start("f", {"x": ODD}), ctx.step(one)),
    },
    "sleep": {
        "negative": lambda ctx: ctx.sleep(-1),
        "NaN": lambda ctx: ctx.sleep(math.nan),
        "long": lambda ctx: ctx.sleep(1e300),
    },
    "sleep_until": {"no zone": lambda ctx: ctx.sleep_until(datetime(2030, 1, 1))},
    "approval": {
        "question": lambda ctx: ctx.approval(5),
        "context": lambda ctx: ctx.approval("Deploy?", context={"x": ODD}),
        "huge context": lambda ctx: ctx.approval("Deploy?", context={"x": HUGE}),
        "option": lambda ctx: ctx.approval("Deploy?", nobody="x"),
        "key": lambda ctx: ctx.approval("Deploy?", key=5),
    },
    "wait_for": {
        "name": lambda ctx: ctx.wait_for("a b"),
        "type": lambda ctx: ctx.wait_for("go", type=complex),
        "timeout": lambda ctx: ctx.wait_for("go", timeout=-1),
    },
    "update": {
        "name": lambda ctx: ctx.update("a b"),
        "type": lambda ctx: ctx.update("go", type=complex),
        "timeout": lambda ctx: ctx.update("go", timeout=-1),
    },
    "publish": {
        "name": lambda ctx: ctx.publish("a b", 1),
        "value": lambda ctx: ctx.publish("x", ODD),
        "NaN": lambda ctx: ctx.publish("x", math.nan),
        "huge value": lambda ctx: ctx.publish("x", HUGE),
        "too many names": lambda ctx: [ctx.publish(f"n{number}", number) for number in range(101)],
        "together too large": lambda ctx: [ctx.publish(f"n{number}", HUGE[:400_000]) for number in range(3)],
    },
    "continue_as_new": {"payload": lambda ctx: ctx.continue_as_new({"x": ODD})},
    "patched": {"name": lambda ctx: ctx.patched(5)},
    "deprecate_patch": {"name": lambda ctx: ctx.deprecate_patch(5)},
    "tag": {"value": lambda ctx: ctx.tag(x=ODD), "name": lambda ctx: ctx.tag({"": 1})},
    "stream": {"name": lambda ctx: ctx.stream("a b"), "value": lambda ctx: ctx.stream("s").write(ODD)},
    "read_stream": {
        "work": lambda ctx: ctx.read_stream(5, "s"),
        "name": lambda ctx: ctx.read_stream(NOBODY, "a b"),
        "offset": lambda ctx: ctx.read_stream(NOBODY, "s", offset=-1),
    },
    "log": {"level": lambda ctx: ctx.log("x", level="loud"), "details": lambda ctx: ctx.log("x", x=ODD)},
    "progress": {"fraction": lambda ctx: ctx.progress(5)},
}
NEVER_REFUSE = {"run_id", "trace_id", "version", "now", "random", "idempotency_key", "dedupe_key", "attempt_key"}


def test_the_tests_cover_every_operation() -> None:
    assert {name for name in dir(FunctionContext) if not name.startswith("_")} == {*REFUSED, *NEVER_REFUSE}


async def _refused(scene: Scene, name: str, refusals: Callable[[Any], Any]) -> list[list[str]]:
    """Return what the function said in each of its executions: it catches the error, and is replayed after a wait."""
    said: list[list[str]] = []

    @scene.engine.function(name)
    async def function(payload: dict[str, Any], ctx: Any) -> None:
        here: list[str] = []
        said.append(here)
        try:
            if inspect.isawaitable(found := refusals(ctx)):
                await found
            here.append("accepted")
        except Exception as error:
            here.append(f"{type(error).__name__}: {error}")
        await ctx.step(one)
        ctx.publish("x", 1) if not name.startswith("publish") else None
        await ctx.wait_for("go")

    started = await scene.engine.start_function(name)
    await scene.process(warm=0).quiet()
    await scene.engine.signal(started, "go")
    await scene.process(warm=0).quiet()
    assert await scene.state(started.id) == "completed", (name, said, (await scene.engine.kernel.runs.get_run(started.id)).error)
    return said


@pytest.mark.parametrize("operation", REFUSED)
async def test_a_refused_operation_that_is_caught_is_refused_again_in_a_replay(operation: str) -> None:
    async with function_scene() as scene:
        for number, (what, refusal) in enumerate(REFUSED[operation].items()):
            first, second = await _refused(scene, f"{operation}.n{number}", refusal)
            assert first == second, (operation, what)
            assert first != ["accepted"], (operation, what)
