"""Durable functions."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.simulation.crew.handlers import OFTEN
from tests.simulation.world import World

from treadle import BlockingFunctionContext, Engine, SignalTimeout, TaskFailed


def add_functions(engine: Engine, world: World) -> None:
    """One does a bit of everything, one, which is sync, goes down and goes on as new, one is told many things."""

    @engine.function("order")
    async def order(payload: Any, ctx: Any) -> Any:
        """A bit of everything that functions do."""
        key = payload["key"]
        first = await ctx.step(step, 1, name="first", retry=OFTEN)
        receipt = await ctx.effect("charge", lambda: world.ask(world.charge, f"{key}/f", ctx.dedupe_key), {"key": key}, retry=OFTEN)
        big = await ctx.step(text, "big" * 5000 if payload["big"] else "", name="big")
        await ctx.sleep(payload["sleeps"])
        doubled = await ctx.gather(
            ctx.call("sim.Double", {"n": 1}), ctx.call("sim.Double", {"n": 2}), ctx.step(step, 5, name="beside", retry=OFTEN)
        )
        try:
            await ctx.call("sim.Break", {"n": 1})
            broken = False
        except TaskFailed:
            broken = True
        child = await ctx.start("child", {"n": first})
        printed = await ctx.external("sim.Print", {"key": f"{key}/p", "takes": 2}) if payload["prints"] else None
        try:
            told = await ctx.wait_for("told", timeout=4) if payload["waits"] else None
        except SignalTimeout:
            told = "nothing"
        approved = (await ctx.approval("Go on?"))["by"] if payload["asks"] else None
        return {
            "first": first,
            "big": big,
            "receipt": receipt,
            "doubled": doubled,
            "broken": broken,
            "child": await child.result(),
            "printed": printed,
            "told": told,
            "approved": approved,
        }

    @engine.function("child")
    def child(payload: Any, ctx: BlockingFunctionContext) -> str:
        """The sync one, which goes down."""
        if payload["n"] > 0:
            ctx.step(step, payload["n"], name="down", retry=OFTEN)
            ctx.continue_as_new({"n": payload["n"] - 1})
        return "done"

    @engine.function("collect")
    async def collect(payload: Any, ctx: Any) -> Any:
        """Is told things while it waits, and while its code executes, before that and beside it."""
        got = list(payload.get("got", ()))
        while len(got) < payload["count"]:
            takes = payload["takes"][len(got)]
            if payload["beside"]:
                item, _ = await ctx.gather(ctx.wait_for("item"), ctx.step(rest, takes, name="beside"))
            else:
                await ctx.step(rest, takes, name="before")
                item = await ctx.wait_for("item")
            got.append(item)
            if payload["anew"] and len(got) == 1:
                await ctx.continue_as_new({**payload, "got": got})
        return sorted(got)

    async def rest(seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def text(said: str) -> str:
        return said

    async def step(n: int) -> int:
        await world.ask(abs, n)
        return n
