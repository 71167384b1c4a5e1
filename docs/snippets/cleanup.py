import asyncio

from treadle import Canceled, Engine, RunCanceled

engine = Engine("memory://")


async def reserve(seats):
    return {"reservation": 7}


async def release(reservation):
    print("released", reservation)


@engine.function("book", cleanup_timeout=30)
async def book(payload, ctx):
    reserved = await ctx.step(reserve, payload["seats"])
    try:
        return await ctx.wait_for("paid")
    except Canceled:
        await ctx.step(release, reserved["reservation"], retry=3)
        raise


async def main():
    async with engine, engine.worker():
        run = await engine.start("book", {"seats": 2})
        await asyncio.sleep(0.2)  # it waits for the signal
        await run.cancel(reason="sold out")
        try:
            await run.result()
        except RunCanceled as error:
            print(error)  # the run is canceled, and the reservation released


asyncio.run(main())
