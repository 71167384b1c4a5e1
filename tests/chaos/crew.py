"""The work that every worker serves: handlers, functions, a specialist, the goal pipeline, and the flow that submissions start."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from tests.chaos.service_client import ServiceClient
from tests.simulation.crew.flows import TOPOLOGY
from tests.simulation.crew.handlers import OFTEN

from treadle import Context, Engine, ExternalProductionHandle, Specialist, Waiting

FLOW = """
namespace chaos {
    event facet Double(n: Long) => (out: Long)
    event facet Charge(key: String) => (receipt: String)
    event facet Print(key: String, takes: Long) => (printed: String)
    facet Twice(n: Long) => (out: Long) andThen {
        a = Double(n = $.n)
        b = Double(n = a.out)
        yield Twice(out = b.out)
    }
    workflow All(items: Json, key: String) => (outs: Json, sum: Long, receipt: String) andThen foreach item in $.items {
        t = Twice(n = $.item)
        yield All(outs = [t.out])
    } andThen {
        left = Double(n = 10)
        right = Double(n = 20)
        both = Double(n = left.out + right.out)
        yield All(sum = both.out)
    } andThen {
        c = Charge(key = $.key)
        yield All(receipt = c.receipt)
    }
    workflow Printed(items: Json, key: String) => (outs: Json, sum: Long, receipt: String, printed: String) andThen {
        a = All(items = $.items, key = $.key)
        p = Print(key = $.key, takes = 1)
        yield Printed(outs = a.outs, sum = a.sum, receipt = a.receipt, printed = p.printed)
    }
}
"""
SOURCES = [("chaos.afl", FLOW)]

COUNTED = ("note", "nap", "chaos.Double", "pursue")
"""Handlers whose body is counted at the service, under the id of their task."""


def furnish(engine: Engine, service: ServiceClient, folder: Path) -> None:
    """Give a worker all that it offers."""
    place = folder / "topology.yaml"
    if not place.exists():
        place.write_text(TOPOLOGY)
    engine.goals.use_topology(place)
    _handlers(engine, service)
    _functions(engine, service)
    _specialists(engine, service)


def _handlers(engine: Engine, service: ServiceClient) -> None:
    @engine.handler("note", retry=OFTEN)
    async def note(payload: Any, ctx: Context) -> Any:
        await service.plain(ctx.task_id)
        await asyncio.sleep(payload["takes"])  # the time of the work, in which its process is killed
        return {"n": payload["n"] * 2, "attempt": ctx.attempt}

    @engine.handler("nap", retry=OFTEN)
    async def nap(payload: Any, ctx: Context) -> Any:
        """Sleeps twice, and holds no worker meanwhile."""
        slept = (ctx.checkpoint or {}).get("slept", 0)
        if slept < 2:
            return Waiting(150, {"slept": slept + 1})
        await service.plain(ctx.task_id)
        return {"slept": slept}

    @engine.handler("charge", retry=OFTEN)
    async def charge(payload: Any, ctx: Context) -> Any:
        effects = [f"{payload['key']}.{number}" for number in range(2)]
        make = [lambda effect=effect: service.make(effect, ctx.dedupe_key) for effect in effects]  # type: ignore[misc]
        return {"receipts": [await ctx.effect("charge", make[n], effect) for n, effect in enumerate(effects)]}

    @engine.handler("charge_blocking", retry=OFTEN)
    def charge_blocking(payload: Any, ctx: Context) -> Any:
        effects = [f"{payload['key']}.{number}" for number in range(2)]
        make = [lambda effect=effect: service.make_blocking(effect, ctx.dedupe_key) for effect in effects]  # type: ignore[misc]
        return {"receipts": [ctx.effect_blocking("charge", make[n], effect) for n, effect in enumerate(effects)]}

    @engine.handler("chaos.Double", retry=OFTEN)
    async def double(payload: Any, ctx: Context) -> Any:
        await service.plain(ctx.task_id)
        return {"out": payload["n"] * 2}

    @engine.handler("chaos.Charge", retry=OFTEN)
    async def charge_step(payload: Any, ctx: Context) -> Any:
        key = payload["key"]
        return {"receipt": await ctx.effect("charge", lambda: service.make(key, ctx.dedupe_key), key)}

    @engine.handler("pursue", retry=OFTEN)
    async def pursue(payload: Any, ctx: Context) -> Any:
        """Objectives say how many of their workorders are to fail."""
        await service.plain(ctx.task_id)
        tries = len(payload["objective"]["workorders"])
        return {"content": "ok" if tries >= payload["objective"]["metadata"]["failing"] else "no"}


def _functions(engine: Engine, service: ServiceClient) -> None:
    @engine.function("order")
    async def order(payload: Any, ctx: Any) -> Any:
        """A bit of everything that functions do."""
        key = payload["key"]
        first = await ctx.step(count, ctx.run_id, "first", 1, name="first", retry=OFTEN)
        receipt = await ctx.effect("charge", lambda: service.make(key, ctx.dedupe_key), {"key": key}, retry=OFTEN)
        await ctx.sleep(payload["sleeps"])
        child = await ctx.start("child", {"n": 1})
        doubled = await ctx.gather(
            ctx.call("chaos.Double", {"n": 1}),
            ctx.call("chaos.Double", {"n": 2}),
            ctx.step(count, ctx.run_id, "beside", 5, name="beside", retry=OFTEN),
        )
        return {
            "first": first,
            "receipt": receipt,
            "doubled": doubled,
            "told": await ctx.wait_for("told") if payload["waits"] else None,
            "printed": await ctx.external("chaos.Print", {"key": key, "takes": 0.5}) if payload["prints"] else None,
            "approved": (await ctx.approval("Go on?"))["by"] if payload["asks"] else None,
            "child": await child.result(),
        }

    @engine.function("child")
    async def child(payload: Any, ctx: Any) -> Any:
        if payload["n"] > 0:
            await ctx.step(count, ctx.run_id, "down", 1, name="down", retry=OFTEN)
            await ctx.continue_as_new({"n": payload["n"] - 1})
        return "done"

    async def count(run_id: str, place: str, n: int) -> int:
        await service.plain(f"{run_id}.{place}")
        return n


def _specialists(engine: Engine, service: ServiceClient) -> None:
    class Print(Specialist):
        async def start(self, payload: Any, ctx: Context) -> Any:
            submission = {"key": payload["key"], "token": ctx.dispatch_token, "takes": payload["takes"]}
            return ExternalProductionHandle((await service.ask("POST", "/jobs", submission))["id"], 0.5)

        async def poll(self, external_job_id: str, ctx: Context) -> Any:
            job = await service.ask("GET", f"/jobs/{external_job_id}")
            return {"printed": job["key"]} if job["done"] else ExternalProductionHandle(external_job_id, 0.5)

        async def find(self, token: str) -> Any:
            job = await service.ask("GET", f"/tokens/{token}")
            return None if job is None else ExternalProductionHandle(job["id"], 0.5)

    engine.specialist("chaos.Print", Print())
