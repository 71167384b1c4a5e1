import asyncio

from treadle import Engine

engine = Engine("memory://")


async def charge(order):
    return {"receipt": f"r-{order['id']}"}


def label(order):  # not async: runs in a thread
    return f"{order['id']} to {order['city']}"


@engine.handler("warehouse.Pick")
async def pick(payload, ctx):
    return {"picked": payload["sku"]}


@engine.function("order")
async def order(payload, ctx):
    receipt = await ctx.step(charge, payload, retry=3)
    picked = await ctx.gather(
        *(ctx.call("warehouse.Pick", {"sku": sku}) for sku in payload["skus"])
    )
    await ctx.sleep(0.1)  # or a month: no worker is occupied, and restarts do not matter
    address = await ctx.wait_for("address", timeout=86_400)
    return {
        "receipt": receipt["receipt"],
        "picked": len(picked),
        "label": await ctx.step(label, payload | address),
    }


async def main():
    async with engine, engine.worker():
        run = await engine.start(
            "order", {"id": 7, "skus": ["tea", "cup"]}, idempotency_key="order-7"
        )
        await engine.signal(run, "address", {"city": "Turin"})
        print(await run.result())


asyncio.run(main())
