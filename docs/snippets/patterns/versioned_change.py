"""Change a workflow while it runs: old runs finish on the old path, new ones take the new."""

import asyncio

from treadle import Engine

engine = Engine()  # the store in TREADLE_STORE, else sqlite:///treadle.db


async def charge(order):
    return f"charged {order}"


async def check_fraud(order):
    return f"checked {order}"


async def ship(order):
    return f"shipped {order}"


@engine.function("order")
async def order_1(payload, ctx):
    """The old code; remove it when `treadle functions list` shows no run of version 1."""
    done = [await ctx.step(charge, payload["order"])]
    await ctx.wait_for("packed")
    return [*done, await ctx.step(ship, payload["order"])]


@engine.function("order", version=2)
async def order_2(payload, ctx):
    """A large change: a new version beside the old one. A run keeps its version."""
    done = [
        await ctx.step(check_fraud, payload["order"]),
        await ctx.step(charge, payload["order"]),
    ]
    await ctx.wait_for("packed")
    return [*done, await ctx.step(ship, payload["order"])]


@engine.function("return")
async def take_back(payload, ctx):
    """A small change: a patch in place. It is False for runs already past this point."""
    await ctx.wait_for("received")
    done = []
    if ctx.patched("check-fraud"):
        done.append(await ctx.step(check_fraud, payload["order"]))
    done.append(await ctx.step(charge, payload["order"]))
    await ctx.wait_for("restocked")
    return done


async def main():
    async with engine, engine.worker():
        old = await engine.start("order", {"order": "a"}, version=1)  # as the last release did
        new = await engine.start("order", {"order": "b"})
        for run in (old, new):
            await run.signal("packed")
            print(await run.result())


if __name__ == "__main__":
    asyncio.run(main())
