"""What every server of a history offers: handlers, functions, a specialist, and the flow that wishes start."""

from __future__ import annotations

import asyncio
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.simulation.world import ServiceError, World

from treadle import (
    ApprovalRequest,
    AwaitingApproval,
    Context,
    Engine,
    ExternalProductionHandle,
    RetryPolicy,
    SignalTimeout,
    Specialist,
    TaskFailed,
    Waiting,
)
from treadle.model.topology import Topology
from treadle.wiring.topology import load_topology

OFTEN = RetryPolicy.of(1000, first=0.2, longest=2, jitter=0.5)
"""What services do wrong is tried again until it is done."""

FLOW = """
namespace sim {
    event facet Double(n: Long) => (out: Long)
    event facet Break(n: Long) => (out: Long)
    event facet Print(key: String, takes: Long) => (printed: String)
    facet Twice(n: Long) => (out: Long) andThen {
        a = Double(n = $.n)
        b = Double(n = a.out)
        yield Twice(out = b.out)
    }
    workflow All(items: Json, key: String) => (outs: Json, sum: Long, printed: String) andThen foreach item in $.items {
        t = Twice(n = $.item)
        yield All(outs = [t.out])
    } andThen {
        left = Double(n = 10)
        right = Double(n = 20)
        both = Double(n = left.out + right.out)
        yield All(sum = both.out)
    } andThen {
        p = Print(key = $.key, takes = 3)
        yield All(printed = p.printed)
    }
    workflow Broken(n: Long) => (out: Long) andThen {
        a = Double(n = $.n)
        b = Break(n = a.out)
        yield Broken(out = b.out)
    }
}
"""
SOURCES = [("sim.afl", FLOW)]


TOPOLOGY = """
name: simulation
types:
  TICKET:
    handler: pursue
    budget: 30s
    gates: [{use: regex, name: says-ok, pattern: ok}]
"""


@cache
def _topology() -> Topology:
    """What the goal pipeline's roles do, as it would be in a file."""
    with TemporaryDirectory() as folder:
        place = Path(folder) / "topology.yaml"
        place.write_text(TOPOLOGY)
        return load_topology(place)


def furnish(engine: Engine, world: World) -> None:
    """Give a server all it offers."""
    engine.topology = _topology()
    _handlers(engine, world)
    _people(engine)
    _functions(engine, world)

    class Print(Specialist):
        async def start(self, payload: Any, ctx: Context) -> Any:
            while True:
                try:
                    job_id = await world.ask(world.submit, payload["key"], ctx.dispatch_token, payload["takes"])
                    return ExternalProductionHandle(job_id, 1.0)
                except ServiceError:
                    await asyncio.sleep(0.5)

        async def poll(self, external_job_id: str, ctx: Context) -> Any:
            if await world.ask(world.look, external_job_id):
                return {"printed": world.jobs[external_job_id].key}
            return ExternalProductionHandle(external_job_id, 0.5 + world.simulation.dice.random())

        async def find(self, token: str) -> Any:
            job_id = await world.ask(world.find, token)
            return None if job_id is None else ExternalProductionHandle(job_id, 1.0)

        async def cancel(self, external_job_id: str) -> None:
            await world.ask(world.stop, external_job_id)

    engine.specialist("sim.Print", Print())


def _handlers(engine: Engine, world: World) -> None:
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


def _people(engine: Engine) -> None:
    @engine.handler("ask")
    async def ask(payload: Any, ctx: Context) -> Any:
        if ctx.approval_decision is None:
            request = ApprovalRequest.of(
                "May I?", context=payload, expires=payload["expires"], remind_after=1, on_expiry="ask_again"
            )
            return AwaitingApproval(request)
        return {"by": ctx.approval_decision["by"]}


def _functions(engine: Engine, world: World) -> None:
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
    async def child(payload: Any, ctx: Any) -> Any:
        if payload["n"] > 0:
            await ctx.step(step, payload["n"], name="down", retry=OFTEN)
            await ctx.continue_as_new({"n": payload["n"] - 1})
        return "done"

    async def text(said: str) -> str:
        return said

    async def step(n: int) -> int:
        await world.ask(abs, n)
        return n
