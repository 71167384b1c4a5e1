import asyncio

from treadle import Engine, UpdateRejected

engine = Engine("memory://")


@engine.function("order")
async def order(payload, ctx):
    ctx.publish("state", "collecting")
    while True:
        update = await ctx.update("set_address")
        if update.value.get("city"):
            break
        await update.reject("a city is required")
    await update.reply({"ships_to": update.value["city"]})
    ctx.publish("state", "shipping")
    return await ctx.wait_for("delivered", timeout=60)


async def main():
    async with engine, engine.worker():
        run = await engine.start("order")
        try:
            await run.update("set_address", {"street": "Main"}, timeout=10)
        except UpdateRejected as error:
            print(error)  # The function rejected the update set_address: a city is required
        answer = await run.update(
            "set_address", {"city": "Rome"}, timeout=10, idempotency_key="address-1"
        )
        assert answer == {"ships_to": "Rome"}
        await engine.signal(run.id, "delivered", {"by": "Ada"})
        assert await run.result() == {"by": "Ada"}
        assert await run.query("state") == "shipping"


asyncio.run(main())
