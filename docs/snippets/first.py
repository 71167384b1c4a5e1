import asyncio

from treadle import Engine

engine = Engine("memory://")


@engine.handler("estimate")
async def estimate(payload, ctx):
    await asyncio.sleep(3600)


@engine.function("quote")
async def quote(payload, ctx):
    winner = await ctx.first(
        answer=ctx.wait_for("answer"), late=ctx.sleep(3600), job=ctx.call("estimate", payload)
    )
    match winner.name:
        case "answer":
            return winner.value
        case "late":
            return {"price": None}
        case "job":
            return winner.value


async def main():
    async with engine, engine.worker():
        run = await engine.start("quote", {"sku": "tea"})
        await engine.signal(run, "answer", {"price": 7})
        print(await run.result())  # {'price': 7}; the task and the timer are canceled


asyncio.run(main())
