"""Versioned change: a run that began on the old path finishes on it, and new ones take the new."""

from __future__ import annotations

from typing import Any

from tests.patterns.programs import Deployment, load

from treadle import Engine


async def test_a_run_of_the_old_version_finishes_on_the_old_path(shared_url: str):
    program = load("versioned_change")
    before = Engine()
    before.function("order")(program.order_1)
    async with Deployment(before, shared_url) as env:
        old = await before.start("order", {"order": "a"})
        await env.drain()
    async with Deployment(program.engine, shared_url) as env:
        new = await program.engine.start("order", {"order": "b"})
        await env.drain()
        for run in (old.id, new.id):
            await program.engine.signal(run, "packed")
        assert await env.result(old.id) == ["charged a", "shipped a"]
        assert await env.result(new.id) == ["checked b", "charged b", "shipped b"]


async def test_a_patch_applies_to_runs_that_have_not_reached_it(shared_url: str):
    program = load("versioned_change")
    before = Engine()

    @before.function("return")
    async def take_back(payload: dict[str, Any], ctx: Any) -> list[str]:
        await ctx.wait_for("received")
        done = [await ctx.step(program.charge, payload["order"])]
        await ctx.wait_for("restocked")
        return done

    async with Deployment(before, shared_url) as env:
        past, waiting = [(await before.start("return", {"order": name})).id for name in "ab"]
        await before.signal(past, "received")
        await env.drain()
    async with Deployment(program.engine, shared_url) as env:
        await program.engine.signal(waiting, "received")
        await env.drain()
    async with Deployment(before, shared_url) as env:  # rolled back
        for run in (past, waiting):
            await before.signal(run, "restocked")
        assert await env.result(past) == ["charged a"]
        assert (await before.why(waiting)).code == "nondeterministic"
    async with Deployment(program.engine, shared_url) as env:
        assert await env.result(waiting) == ["checked b", "charged b"]
