"""A blocked event loop is logged with the name of the handler whose code blocks it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
from tests.limits import BOUND

from treadle import Context, Engine
from treadle.kernel.telemetry.events import LoopBlocked, TelemetryEvent


def register(engine: Engine, kind: str, block: Callable[[], object]) -> None:
    async def step() -> None:
        block()

    if kind == "handler":

        @engine.handler("blocks")
        async def handler(payload: Any, ctx: Context) -> None:
            await asyncio.sleep(0)
            block()

    elif kind == "task":

        @engine.task
        async def blocks() -> None:
            block()

    elif kind == "effect":

        @engine.handler("blocks")
        async def effect(payload: Any, ctx: Context) -> None:
            await ctx.effect("mail", block)

    else:

        @engine.function("blocks")
        async def function(payload: Any, ctx: Any) -> None:
            await {
                "function": lambda: ctx.sleep(block() or 0),  # type: ignore[func-returns-value]
                "step": lambda: ctx.step(step),
                "gather": lambda: ctx.gather(ctx.sleep(0), ctx.step(step)),
            }[kind]()


@pytest.mark.parametrize("kind", ["handler", "task", "effect", "function", "step", "gather"])
async def test_a_blocked_event_loop_is_reported_with_the_name_of_the_handler_after_a_second(kind: str) -> None:
    engine = Engine("memory://")
    events: list[LoopBlocked] = []
    reported = threading.Event()

    def note(event: TelemetryEvent) -> None:
        if isinstance(event, LoopBlocked):
            events.append(event)
            reported.set()

    engine.kernel.telemetry.add(note)
    register(engine, kind, lambda: reported.wait(BOUND) and None)
    async with engine, engine.worker():
        is_function = kind in ("function", "step", "gather")
        started = await (engine.start_function("blocks") if is_function else engine.enqueue("blocks"))
        await (engine.run_result if is_function else engine.result)(started, timeout=BOUND)
    (blocked,) = events
    assert blocked.handler == ("blocks@1" if is_function else "blocks")
    assert blocked.seconds >= 1


async def test_a_handler_that_waits_is_not_reported_as_blocking() -> None:
    engine = Engine("memory://")
    events: list[TelemetryEvent] = []
    engine.kernel.telemetry.add(events.append)

    @engine.handler("waits")
    async def waits(payload: Any, ctx: Context) -> None:
        await asyncio.sleep(1.5)  # longer than a block that is reported

    async with engine, engine.worker():
        await engine.result(await engine.enqueue("waits"), timeout=BOUND)
    assert [event for event in events if isinstance(event, LoopBlocked)] == []
