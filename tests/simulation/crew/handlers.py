"""Plain handlers."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.simulation.world import World

from treadle import Context, Engine, NonRetryable, RetryPolicy, Waiting

OFTEN = RetryPolicy.of(1000, first=0.2, longest=2, jitter=0.5)
"""Retry failures of services until they succeed."""


def add_handlers(engine: Engine, world: World) -> None:
    """Those that tasks, workflows, schedules, watchers and the goal pipeline call."""

    @engine.handler("work", retry=OFTEN)
    async def work(payload: Any, ctx: Context) -> Any:
        """Takes its time, and fails as often as it was told to."""
        await asyncio.sleep(payload["takes"])
        if world.raised[ctx.task_id] < payload["fails"]:
            world.raised[ctx.task_id] += 1
            raise OSError("not yet")
        return {"n": payload["n"] * 2} | ({"big": payload["big"]} if "big" in payload else {})

    @engine.handler("late")
    async def late(payload: Any, ctx: Context) -> Any:
        """Takes too long the first time."""
        world.entered[ctx.task_id] += 1
        await asyncio.sleep(60 if world.entered[ctx.task_id] == 1 else 0.5)

    @engine.handler("sync", retry=OFTEN)
    def sync(payload: Any) -> Any:
        return {"n": payload["n"] * 2}

    @engine.handler("nap")
    async def nap(payload: Any, ctx: Context) -> Any:
        slept = (ctx.checkpoint or {}).get("slept", 0)
        return Waiting(1500, {"slept": slept + 1}) if slept < 2 else {"slept": slept}

    @engine.handler("charge", retry=OFTEN)
    async def charge(payload: Any, ctx: Context) -> Any:
        """Two effects, and a failure after them."""
        key = payload["key"]
        receipts = [
            await ctx.effect(
                f"charge{number}",
                lambda number=number: world.ask(world.charge, f"{key}/{number}", ctx.dedupe_key),  # type: ignore[misc]
                request={"key": key, "number": number},
            )
            for number in range(2)
        ]
        await world.ask(len, "after")
        return {"receipts": receipts}

    @engine.handler("sim.Double", retry=OFTEN)
    async def double(payload: Any, ctx: Context) -> Any:
        await world.ask(abs, payload["n"])
        return {"out": payload["n"] * 2}

    @engine.handler("sim.Break")
    async def break_it(payload: Any) -> Any:
        raise ValueError("it never works")

    @engine.handler("pursue", retry=OFTEN)
    async def pursue(payload: Any, ctx: Context) -> Any:
        """Objectives say how many of their workorders are to fail."""
        tries = len(payload["objective"]["workorders"])
        await world.ask(abs, tries)
        return {"content": "ok" if tries > payload["objective"]["metadata"]["failing"] else "no"}

    @engine.handler("tick")
    async def tick(payload: Any) -> Any:
        return {"tick": payload["tick"]}

    @engine.handler("noticed")
    async def noticed(payload: Any) -> Any:
        return {"name": payload["change"]["name"]}

    @engine.handler("doomed")
    async def doomed(payload: Any, ctx: Context) -> Any:
        """Fails permanently as often as it was told to."""
        world.raised[ctx.task_id] += 1
        if world.raised[ctx.task_id] <= payload["times"]:
            raise NonRetryable("it is of no use")
        return {"key": payload["key"]}
